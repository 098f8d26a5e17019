"""Spellings of locations in object stores that must be refused, below or beside the root `ROOT`."""

ROOT = "s3://lake/root"
CONTROL = [chr(number) for number in (*range(32), 0x7F, 0x85, 0x9F)]
INVISIBLE = [
    *("\u00a0", "\u00ad", "\u061c", "\u180e", "\u200b", "\u200d", "\u200e", "\u202a", "\u202e"),
    *("\u2028", "\u2029", "\u2060", "\u2066", "\u3000", "\ufeff", "\ue000", "\ud800", "\udfff"),
    "\U000e0041",
]
SCHEMES = [
    *("s3a://lake/root/t", "s3n://lake/root/t", "S3://lake/root/t", "s3A://lake/root/t"),
    *("S3A://lake/root/t", " s3://lake/root/t", "\ts3://lake/root/t", "s3 ://lake/root/t"),
    *("s3:lake/root/t", "s3:/lake/root/t", "s3:///lake/root/t", "s3:////lake/root/t", "s3://"),
    *("s3:", "s3:\\\\lake\\root\\t", "s3:/\\lake/root/t"),
    *("gcs://lake/root/t", "GS://lake/root/t", "abfs://c@account.dfs.core.windows.net/t"),
    *("wasb://c@account.blob.core.windows.net/t", "wasbs://c@account.blob.core.windows.net/t"),
    *("az://c/t", "adl://account.azuredatalakestore.net/t", "azure://c/t", "s3+ddb://lake/root/t"),
    *(
        "s3-accesspoint://lake/root/t",
        "minio://lake/root/t",
        "r2://lake/root/t",
        "oss://lake/root/t",
    ),
    *("cos://lake/root/t", "obs://lake/root/t", "swift://lake/root/t", "hdfs://lake/root/t"),
    *(
        "http://lake/root/t",
        "https://lake.s3.amazonaws.com/root/t",
        "https://s3.amazonaws.com/lake",
    ),
    *(
        "ftp://lake/root/t",
        "memory://lake/root/t",
        "file://lake/root/t",
        "file-object-store:///lake",
    ),
    *(
        "s3\u200b://lake/root/t",
        "\u200bs3://lake/root/t",
        "\ufeffs3://lake/root/t",
        "\uff533://lake/t",
    ),
    *("s3://arn:aws:s3:::lake/root/t", "s3://s3://lake/root/t"),
    *(
        "s3://s3:/lake/root/t",
        "url:s3://lake/root/t",
        "jar:s3://lake/root/t!/x",
        "view-source:s3://lake/t",
    ),
]
AUTHORITIES = [
    f"s3://{authority}/root/t"
    for authority in (
        *("", "user@lake", "user:password@lake", ":@lake", "@lake", "lake@", "lake@evil.example"),
        *("lake:80", "lake:443", "lake:", ":9000", "lake:0", "lake#", "lake?x", "lake#@evil"),
        *("evil.example#lake", "evil.example?lake", "lake%2fevil", "lake%00", "lake%20", "%6cake"),
        *("lake%2eevil", "LAKE", "Lake", "la_ke", "la ke", "lake ", " lake", "la\tke", "la\nke"),
        *("lake.", ".lake", "la..ke", "-lake", "lake-", "la*ke", "*", "?", "lake*", "la{k}e"),
        *(
            "${bucket}",
            "la$ke",
            "la+ke",
            "la=ke",
            "la&ke",
            "la,ke",
            "la;ke",
            "la!ke",
            "la'ke",
            'la"ke',
        ),
        *("(lake)", "la~ke", "la|ke", "la^ke", "la`ke", "la<ke", "la>ke", "la\\ke", "lake\\evil"),
        *(
            "..",
            ".",
            "la/../ke",
            "l",
            "la",
            "x" * 64,
            "x" * 300,
            "l\u00e4ke",
            "\u043bake",
            "la\u212ae",
        ),
        *(
            "\uff4c\uff41\uff4b\uff45",
            "lake\u3002evil",
            "lake\uff0fevil",
            "lake\u2044evil",
            "la\u00adke",
        ),
        *("127.0.0.1", "169.254.169.254", "10.0.0.1", "0.0.0.0", "255.255.255.255", "[::1]"),
        *("[fd00:ec2::254]", "169.254.169.254:80", "metadata.google.internal:80", "localhost:9000"),
        *(
            "lake.s3.amazonaws.com:443",
            "lake/../other",
            "lake%2f..%2fother",
            "lake;x=y",
            "lake\x00",
        ),
    )
]
OTHER_AUTHORITIES = [
    *(
        "gs://user@lake/t",
        "gs://lake:80/t",
        "gs:///t",
        "gs://LAKE/t",
        "gs://la..ke/t",
        "gs://lake%2f/t",
    ),
    *(
        "gs://169.254.169.254/t",
        "gs://-lake/t",
        "gs://la ke/t",
        "gs://lake?x/t",
        "gs://lake\u200b/t",
    ),
    *(
        "abfss://c/t",
        "abfss://account.dfs.core.windows.net/t",
        "abfss://@account.dfs.core.windows.net/t",
    ),
    *("abfss://con@evil.example/t", "abfss://con@account.blob.core.windows.net/t"),
    *(
        "abfss://con@account.dfs.core.windows.net.evil.example/t",
        "abfss://con@account.dfs.evil.net/t",
    ),
    *(
        "abfss://con@evil.example/account.dfs.core.windows.net",
        "abfss://con@a@b.dfs.core.windows.net/t",
    ),
    *(
        "abfss://con:x@account.dfs.core.windows.net/t",
        "abfss://con@account.dfs.core.windows.net:1/t",
    ),
    *("abfss://con@ACCOUNT.dfs.core.windows.net/t", "abfss://CON@account.dfs.core.windows.net/t"),
    *("abfss://con@evil.example#.dfs.core.windows.net/t", "abfss://con@x?.dfs.core.windows.net/t"),
    *("abfss://con@evil.example%2f.dfs.core.windows.net/t", "abfss://con@dfs.core.windows.net/t"),
    *("abfss://con@127.0.0.1/t", "abfss://con@169.254.169.254/t", "abfss://con@localhost/t"),
    *(
        "abfss://con@account.dfs.core.windows.net./t",
        "abfss://con@account-x.dfs.core.windows.net/t",
    ),
]
# In keys of directories and files: readers of such a path disagree on which one it is.
KEYS = [
    f"{ROOT}/{key}"
    for key in (
        *("..", "../t", "t/..", "t/../u", "t/../../other", "t/../../../evil", "./..", "t/..//u"),
        *("%2e%2e", "%2e%2e/u", "t/%2e%2e/u", "t/.%2e/u", "t/%2e./u", "t/%2E%2E/u", "t%2f..%2fu"),
        *("t%2F..%2Fu", "%2e%2e%2fu", "t/%252e%252e/u", "t%252f..%252fu", "t%5c..%5cu", "t\\..\\u"),
        *(
            "..\\u",
            "t/..\\u",
            "\\\\evil\\t",
            "t\\u",
            ".",
            "./t",
            "t/.",
            "t/./u",
            "/t",
            "//t",
            "t//u",
        ),
        *("t///u", "t//", "//", " ", " t", "t ", "t/ u", "t /u", "t/ /u", "t/\u00a0/u"),
        "x" * 1025,
        "\u00e4" * 520,
        "/".join(["t"] * 520),
    )
]
CHARACTERS = [f"{ROOT}/t{character}u" for character in (*CONTROL, *INVISIBLE)]
TRAILING = [f"{ROOT}/t{character}" for character in ("\x00", "\n", "\r\n", "\t", "\u200b", "//")]
# In directories only: wildcards of policies, variables, queries, fragments and encodings.
DIRECTORIES = [
    f"{ROOT}/{key}"
    for key in (
        *("*", "t*", "*/t", "t/*", "t?", "?", "t/?/u", "${aws:username}", "${*}", "$", "t$", "{t}"),
        *(
            "{t,u}",
            "[t]",
            "[!t]",
            "t#u",
            "#",
            "t?versionId=1",
            "t?x=/../y",
            "t%20u",
            "t%2fu",
            "%74",
        ),
        *("t%", "100%", "t%00", "t%u002e", "t;u", 't"u', "t<u", "t>u", "t|u", "t^u", "t`u"),
        *(
            "gr\u00f6\u00dfe",
            "e\u0301",
            "\u043e",
            "t\u2044u",
            "t\uff0fu",
            "t\uff0e\uff0e",
            "\U0001f9ca",
        ),
    )
]
FILES_AND_DIRECTORIES = [
    *(*SCHEMES, *AUTHORITIES, *OTHER_AUTHORITIES, *KEYS, *CHARACTERS, *TRAILING),
    *("s3://lake//root/t", "s3://lake/./root/t", "s3://lake/root/../root/t"),
]
OUTSIDE = [
    *(
        "s3://lake",
        "s3://lake/",
        "s3://lake/root",
        "s3://lake/root/",
        "s3://lake/roo",
        "s3://lake/r",
    ),
    *("s3://lake/root2", "s3://lake/root2/t", "s3://lake/root-old/t", "s3://lake/root.bak/t"),
    *("s3://lake/Root/t", "s3://lake/other/t", "s3://lake/root t", "s3://lake2/root/t"),
    *("s3://lak/root/t", "s3://other/root/t", "s3://lake.evil/root/t", "s3://evil.lake/root/t"),
    *("gs://lake/root/t", "s3://evil-lake/root/t", "s3://lake-/../lake/root/t"),
    "abfss://lake@account.dfs.core.windows.net/root/t",
]
