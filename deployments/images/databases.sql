-- Run once by the Postgres image, beside the database `prefect` that it makes itself.
CREATE DATABASE mlflow;
CREATE DATABASE mlflow_auth;
