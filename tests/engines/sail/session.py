from pyspark.sql import SparkSession

spark = SparkSession.builder.remote("sc://127.0.0.1:50051").getOrCreate()
spark.conf.set("spark.sql.session.timeZone", "UTC")
