"""Texts that would like to be something else than text."""

HOSTILE = [
    "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>",
    "</script><script>window.hacked = 3</script><!-- <b>bold</b> &amp; &lt;",
    "\x1b[31mred\x1b[0m \x00\x07 \u2028\u2029 \ud800 \u202egnp.exe \x9b31m",
    "${window.hacked = 4} {{7*7}} javascript:alert(1) %{x} <br>" + "\U0001f600 é 漢字",
]
