"""Who holds which page of the cache: prompts of a group together, each rollout its own."""

from __future__ import annotations

from collections.abc import Sequence

from dare_decoder.batching import IntArray


def pages_for(tokens: int, page: int) -> int:
    """Pages that hold so many tokens."""
    return -(-tokens // page)


class PagePool:
    """Free pages. Page 0 is never handed out: slots without a rollout write there."""

    def __init__(self, count: int) -> None:
        self._free = list(range(count - 1, 0, -1))

    @property
    def free(self) -> int:
        """Pages that nobody holds."""
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """So many pages; asking for more than are free is the caller's mistake."""
        assert count <= len(self._free), "the caller looks at `free` first"
        taken = self._free[len(self._free) - count :]
        del self._free[len(self._free) - count :]
        return taken

    def give(self, pages: list[int]) -> None:
        """Take pages back."""
        self._free.extend(pages)


class SharedPrompts:
    """Pages of each prompt but its last token, held while any of its rollouts is to come.

    The last token is read by every rollout itself: the first decoding step then needs no logits
    of the prompt, and a new rollout is a row of small numbers.
    """

    def __init__(self, prompts: Sequence[IntArray], prompt_R: IntArray, pool: PagePool, page: int):
        self._prompts, self._pool, self._page = prompts, pool, page
        self._left: dict[int, int] = {}
        for prompt in prompt_R.tolist():
            self._left[prompt] = self._left.get(prompt, 0) + 1
        self._pages: dict[int, list[int]] = {}
        self._running: dict[int, int] = {}

    def size(self, prompt: int) -> int:
        """Tokens that are shared."""
        return len(self._prompts[prompt]) - 1

    def last(self, prompt: int) -> int:
        """The token that each rollout begins with."""
        return int(self._prompts[prompt][-1])

    def held(self, prompt: int) -> bool:
        """Whether this prompt has been given its pages."""
        return prompt in self._pages

    def need(self, prompt: int) -> int:
        """Pages that this prompt has still to be given."""
        return 0 if self.held(prompt) else pages_for(self.size(prompt), self._page)

    def hold(self, prompt: int) -> list[int]:
        """Give the prompt its pages."""
        self._pages[prompt] = self._pool.take(self.need(prompt))
        return self._pages[prompt]

    def pages(self, prompt: int) -> list[int]:
        """Its pages, in order."""
        return self._pages[prompt]

    def begin(self, prompt: int) -> None:
        """One of its rollouts runs."""
        self._running[prompt] = self._running.get(prompt, 0) + 1

    def leave(self, prompt: int, *, ended: bool) -> None:
        """One of its rollouts runs no more; after the last has ended its pages are free."""
        self._running[prompt] -= 1
        self._left[prompt] -= ended
        if not self._left[prompt]:
            self._pool.give(self._pages.pop(prompt))

    def drop_idle(self) -> bool:
        """Free the pages of prompts whose rollouts all wait: they are read again then."""
        idle = [prompt for prompt in self._pages if not self._running.get(prompt)]
        for prompt in idle:
            self._pool.give(self._pages.pop(prompt))
        return bool(idle)
