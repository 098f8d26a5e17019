"""Indexes and searches texts with LangChain's vector store, and prints what it finds."""

import sys
import warnings

import lancedb
from langchain_community.vectorstores import LanceDB
from langchain_core.embeddings import Embeddings

warnings.simplefilter("ignore")
url, key, database = sys.argv[1:]


class Letters(Embeddings):
    """A text as the numbers of its letters."""

    def embed_query(self, text: str) -> list[float]:
        return [float(text.count(letter)) for letter in "abcdefghijklmnopqrstuvwxyz"]

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]


db = lancedb.connect(f"db://{database}", api_key=key, host_override=url)
store = LanceDB(connection=db, embedding=Letters(), table_name="texts", mode="append")
store.add_texts(["a narwhal in the sea", "an orca in the ocean"], [{"n": 1}, {"n": 2}])
store.add_texts(["a zebra at the zoo"], [{"n": 3}])
for text in ("zebra zoo", "orca ocean"):
    (document,) = store.similarity_search(text, k=1)
    print(document.metadata["n"], document.page_content)
(document,) = store.as_retriever(search_kwargs={"k": 1}).invoke("narwhal sea")
print(document.metadata["n"], document.page_content)
print(store.get_table().count_rows())
