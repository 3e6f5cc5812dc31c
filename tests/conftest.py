"""Makes `tiny`, the small policy that the tests share, importable from every folder of tests."""
