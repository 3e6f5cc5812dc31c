"""The reward of the tests, as verl loads one from a file."""


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **_):
    right = solution_str.startswith(ground_truth)
    return {"score": float(right), "acc": right}
