"""Indexes and searches images of digits with LangChain's vector store, and prints results."""

import functools
import sys
import warnings

import lancedb
from langchain_community.vectorstores import LanceDB
from langchain_core.embeddings import Embeddings
from sklearn.datasets import load_digits
from sklearn.neighbors import NearestNeighbors

STORED, SEARCHED = range(1500), range(1500, 1600)
warnings.simplefilter("ignore")
url, key, database = sys.argv[1:]
digits = load_digits()


class Images(Embeddings):
    """An image's pixels, by its number in the text."""

    def embed_query(self, text: str) -> list[float]:
        return digits.data[int(text.removeprefix("image "))].tolist()

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]


# The store connects itself, and has no option for the server.
lancedb.connect = functools.partial(lancedb.connect, host_override=url)
store = LanceDB(
    uri=f"db://{database}",
    api_key=key,
    region="us-east-1",  # required, and not used
    embedding=Images(),
    table_name="texts",
)
for part in (STORED[:1000], STORED[1000:]):
    store.add_texts([f"image {n}" for n in part], [{"label": int(digits.target[n])} for n in part])
exact = NearestNeighbors(n_neighbors=1).fit(digits.data[STORED])
nearest = exact.kneighbors(digits.data[SEARCHED], return_distance=False)[:, 0]
equal = correct = 0
for n, expected in zip(SEARCHED, nearest, strict=True):
    (document,) = store.similarity_search(f"image {n}", k=1)
    equal += document.page_content == f"image {expected}"
    correct += document.metadata["label"] == digits.target[n]
print(equal, correct)
sevens = {"k": 3, "filter": "metadata.label = 7", "prefilter": True}
documents = store.as_retriever(search_kwargs=sevens).invoke("image 3")
print([document.metadata["label"] for document in documents])
print(store.get_table().count_rows())
