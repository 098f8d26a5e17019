from prometheus_client import REGISTRY

from catalog import sized_cache
from catalog.sized_cache import SizedCache


def counted(cache: str, result: str) -> float | None:
    sized_cache.publish()
    labels = {"cache": cache, "result": result}
    return REGISTRY.get_sample_value("monodon_lance_cache_requests_total", labels)


def used(cache: str) -> float | None:
    return REGISTRY.get_sample_value("monodon_lance_cache_bytes", {"cache": cache})


def test_the_least_recently_used_entries_are_removed(settings):
    settings.MONODON_LANCE_CACHE_BYTES = 1000
    cache: SizedCache[str] = SizedCache("of three", 0.03)
    for key in "abc":
        cache.put(key, key.upper(), cost=10)
    assert cache.get("a") == "A"
    cache.put("d", "D", cost=10)
    assert [cache.get(key) for key in "abcd"] == ["A", None, "C", "D"]
    assert (counted("of three", "hit"), counted("of three", "miss")) == (4, 1)
    assert used("of three") == 30


def test_an_entry_that_is_taken_is_removed(settings):
    settings.MONODON_LANCE_CACHE_BYTES = 1000
    cache: SizedCache[str] = SizedCache("of one", 0.03)
    cache.put("a", "A", cost=10)
    assert cache.take("a") == "A"
    assert cache.take("a") is None
    assert (counted("of one", "hit"), counted("of one", "miss"), used("of one")) == (1, 1, 0)
    cache.put("b", "B", cost=20)
    cache.clear()
    assert (cache.get("b"), used("of one")) == (None, 0)
