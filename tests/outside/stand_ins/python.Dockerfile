# Debian and its Python from `debootstrap`, where the official image cannot be had.
FROM scratch
ADD base.tar /
RUN ln -s /usr/bin/python3.11 /usr/local/bin/python && ln -s /usr/bin/python3.11 /usr/local/bin/python3
