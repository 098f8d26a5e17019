"""Indexes and searches images of digits with LlamaIndex's vector store, and prints results."""

import functools
import logging
import sys
import warnings

import lancedb
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.embeddings import MockEmbedding
from llama_index.core.schema import NodeRelationship, QueryBundle, RelatedNodeInfo, TextNode
from llama_index.core.vector_stores import MetadataFilter, MetadataFilters, VectorStoreQuery
from llama_index.vector_stores.lancedb import LanceDBVectorStore
from sklearn.datasets import load_digits
from sklearn.neighbors import NearestNeighbors

STORED, SEARCHED = range(1500), range(1500, 1600)
warnings.simplefilter("ignore")
logging.disable()
url, key, database = sys.argv[1:]
digits = load_digits()


def node(number: int) -> TextNode:
    source = RelatedNodeInfo(node_id=f"document {number // 100}")
    return TextNode(
        id_=str(number),
        text=f"image {number}",
        embedding=digits.data[number].tolist(),
        metadata={"label": int(digits.target[number])},
        relationships={NodeRelationship.SOURCE: source},
    )


def nearest_ids() -> list[str]:
    ids = []
    for number in SEARCHED:
        query = VectorStoreQuery(query_embedding=digits.data[number].tolist(), similarity_top_k=1)
        ids += store.query(query).ids
    return ids


# The store connects itself, and has no option for the server.
lancedb.connect = functools.partial(lancedb.connect, host_override=url)
store = LanceDBVectorStore(
    uri=f"db://{database}", api_key=key, region="us-east-1", table_name="nodes", refine_factor=10
)
context = StorageContext.from_defaults(vector_store=store)
index = VectorStoreIndex(
    [node(number) for number in STORED[:1000]],
    storage_context=context,
    embed_model=MockEmbedding(embed_dim=64),  # the nodes have their embeddings
)
index.insert_nodes([node(number) for number in STORED[1000:]])
exact = NearestNeighbors(n_neighbors=1).fit(digits.data[STORED])
expected = exact.kneighbors(digits.data[SEARCHED], return_distance=False)[:, 0]
print(sum(int(actual) == number for actual, number in zip(nearest_ids(), expected, strict=True)))
filters = MetadataFilters(filters=[MetadataFilter(key="label", value=7)])
retriever = index.as_retriever(similarity_top_k=3, filters=filters)
query = QueryBundle("a seven", embedding=digits.data[3].tolist())
print([result.node.metadata["label"] for result in retriever.retrieve(query)])
store.create_index(num_partitions=4, num_sub_vectors=16)
indexed = zip(nearest_ids(), expected, strict=True)
print(sum(int(actual) == number for actual, number in indexed) >= 90)
# The store's own delete sends double quotes, which lancedb takes for the name of a column, in a local directory too.
store.table.delete("doc_id = 'document 14'")
print(store.table.count_rows(), [index.name for index in store.table.list_indices()])
