"""The index types that the catalog can build."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    """An index type that the catalog can build."""

    name: str
    cost: int
    """Cost of indexing one row, in rows of a BTREE (measured on two cores; see docs)."""
    is_vector: bool = False
    bits: tuple[int, ...] = ()
    """Allowed values of ``num_bits``; empty if the type has no configurable quantizer."""
    is_product: bool = False
    """True for a product quantizer, which has sub-vectors and trains one code per value."""
    is_graph: bool = False

    @property
    def lance_name(self) -> str:
        """Name of the type in pylance."""
        return self.name.replace("_", "") if self.name in _JOINED else self.name


_JOINED = {"BLOOM_FILTER", "MINHASH_LSH"}
_PQ_BITS, _SQ_BITS, _RQ_BITS = (4, 8), (8,), tuple(range(1, 10))
KINDS = (
    Kind("BTREE", 1),
    Kind("BITMAP", 2),
    Kind("LABEL_LIST", 2),
    Kind("NGRAM", 10),
    Kind("ZONEMAP", 1),
    Kind("BLOOM_FILTER", 1),
    Kind("RTREE", 5),
    Kind("MINHASH_LSH", 20),
    Kind("INVERTED", 10),
    Kind("IVF_FLAT", 25, is_vector=True),
    Kind("IVF_SQ", 25, is_vector=True, bits=_SQ_BITS),
    Kind("IVF_PQ", 100, is_vector=True, bits=_PQ_BITS, is_product=True),
    Kind("IVF_RQ", 25, is_vector=True, bits=_RQ_BITS),
    Kind("IVF_HNSW_FLAT", 100, is_vector=True, is_graph=True),
    Kind("IVF_HNSW_SQ", 100, is_vector=True, bits=_SQ_BITS, is_graph=True),
    Kind("IVF_HNSW_PQ", 200, is_vector=True, bits=_PQ_BITS, is_product=True, is_graph=True),
)


def find_kind(name: str) -> Kind | None:
    """Return the type of this name in any spelling, or None if the catalog cannot build it."""
    return _BY_KEY.get(_key(name))


def get_kind(name: str) -> Kind:
    """Return the type of this name, which must exist."""
    return _BY_KEY[_key(name)]


def type_name(lance_name: str) -> str:
    """Return the specification's name of a type from Lance's own name of it."""
    kind = find_kind(lance_name)
    return lance_name if kind is None else kind.name


def _key(name: str) -> str:
    """Return the form in which names are compared: case and underscores do not matter."""
    return name.replace("_", "").upper()


_BY_KEY = {_key(kind.name): kind for kind in KINDS}

_BY_KEY |= {
    "FTS": _BY_KEY["INVERTED"],
    "SCALAR": _BY_KEY["BTREE"],
    "VECTOR": _BY_KEY["IVFPQ"],
}
