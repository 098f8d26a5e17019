export SAIL_CATALOG__LIST='[
  {type="iceberg-rest", name="lake", uri="http://127.0.0.1:2333", bearer_access_token="mnd_..."},
  {type="iceberg-rest", name="part", uri="http://127.0.0.1:2333", bearer_access_token="mnd_...", warehouse="sail"}]'
export SAIL_CATALOG__DEFAULT_CATALOG=lake
exec sail spark server --ip 127.0.0.1 --port 50051
