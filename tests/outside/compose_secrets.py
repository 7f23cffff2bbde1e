"""Values for the secrets of the compose file."""

from typing import Final

SECRETS: Final = {
    "POSTGRES_PASSWORD": "0123456789abcdef",
    "REDIS_PASSWORD": "fedcba9876543210",
    "REDIS_URL": "redis://:fedcba9876543210@redis:6379/0",
    "PREFECT_AUTH_STRING": "stillhouse:prefect-login",
    "MLFLOW_PASSWORD": "mlflow-login-0123",
    "MLFLOW_COOKIE_KEY": "mlflow-cookies",
}
