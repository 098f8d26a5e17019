-- The catalog as a database, with the key as a token. The catalog issues credentials for the store.
SET allow_database_iceberg = 1;
CREATE DATABASE lake ENGINE = DataLakeCatalog('http://127.0.0.1:2333/v1')
    SETTINGS catalog_type = 'rest', warehouse = 'monodon', auth_header = 'Authorization: Bearer mnd_...';
SHOW TABLES FROM lake LIKE 'clickhouse.%';
-- clickhouse.europe.towns
-- clickhouse.orders
SELECT * FROM lake.`clickhouse.orders` ORDER BY id;
-- 1 | ice
-- 2 | tusk
SELECT name FROM lake.`clickhouse.europe.towns`;
-- Tromsø
SELECT name, type FROM system.columns WHERE database = 'lake' AND table = 'clickhouse.orders'
    SETTINGS show_data_lake_catalogs_in_system_tables = 1;
-- id | Nullable(Int64)
-- item | Nullable(String)

-- With a client's id and secret instead of a token
CREATE DATABASE by_credential ENGINE = DataLakeCatalog('http://127.0.0.1:2333/v1')
    SETTINGS catalog_type = 'rest', warehouse = 'monodon', catalog_credential = 'admin:mnd_...';
SELECT count() FROM by_credential.`clickhouse.orders`;
-- 2

-- A namespace as the whole catalog. Tables directly in it are not listed: they are in no namespace.
CREATE DATABASE part ENGINE = DataLakeCatalog('http://127.0.0.1:2333/v1')
    SETTINGS catalog_type = 'rest', warehouse = 'clickhouse', auth_header = 'Authorization: Bearer mnd_...';
SHOW TABLES FROM part;
-- europe.towns
SELECT name FROM part.`europe.towns`;
-- Tromsø
CREATE DATABASE whole ENGINE = DataLakeCatalog('http://127.0.0.1:2333/v1')
    SETTINGS catalog_type = 'rest', auth_header = 'Authorization: Bearer mnd_...';
-- fails: `warehouse` setting cannot be empty

-- Changing rows and schemas. Other clients need full paths in the metadata.
SET allow_insert_into_iceberg = 1;
SET write_full_path_in_iceberg_metadata = 1;
INSERT INTO lake.`clickhouse.orders` VALUES (3, 'fin'), (4, NULL);
ALTER TABLE lake.`clickhouse.orders` DELETE WHERE id = 1;
ALTER TABLE lake.`clickhouse.orders` UPDATE item = 'horn' WHERE id = 2;
ALTER TABLE lake.`clickhouse.orders` ADD COLUMN price Nullable(Float64);
INSERT INTO lake.`clickhouse.orders` VALUES (5, 'fur', 7.5);
SELECT * FROM lake.`clickhouse.orders` ORDER BY id;
-- 2 | horn | NULL
-- 3 | fin | NULL
-- 4 | NULL | NULL
-- 5 | fur | 7.5

-- With a key of ClickHouse's own for the store, which new tables need
CREATE DATABASE own ENGINE = DataLakeCatalog('http://127.0.0.1:2333/v1', 'KEY_ID', 'SECRET')
    SETTINGS catalog_type = 'rest', warehouse = 'monodon', auth_header = 'Authorization: Bearer mnd_...',
        storage_endpoint = 'http://127.0.0.1:9000', vended_credentials = false;
SELECT count() FROM own.`clickhouse.orders`;
-- 4
CREATE TABLE own.`clickhouse.stock` (item String, pieces Nullable(Int32))
    ENGINE = IcebergS3('http://127.0.0.1:9000/bucket/clickhouse/stock/', 'KEY_ID', 'SECRET');
INSERT INTO own.`clickhouse.stock` VALUES ('ice', 3), ('tusk', NULL);
SELECT * FROM lake.`clickhouse.stock` ORDER BY item;
-- ice | 3
-- tusk | NULL
CREATE TABLE own.`clickhouse.stock` (item String)
    ENGINE = IcebergS3('http://127.0.0.1:9000/bucket/clickhouse/other/', 'KEY_ID', 'SECRET');
-- fails: already exists

-- Dropping works, but ClickHouse sends two requests, and reports the failure of the second
CREATE TABLE own.`clickhouse.spare` (id Int64)
    ENGINE = IcebergS3('http://127.0.0.1:9000/bucket/clickhouse/spare/', 'KEY_ID', 'SECRET');
DROP TABLE own.`clickhouse.spare`;
-- fails: Table does not exist: clickhouse.spare
SHOW TABLES FROM lake LIKE 'clickhouse.%';
-- clickhouse.europe.towns
-- clickhouse.orders
-- clickhouse.stock
