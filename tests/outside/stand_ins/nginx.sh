# Podman's name server has another address than Docker's, which the gateway's file names.
set -eu
server=$(sed -n 's/^nameserver //p' /etc/resolv.conf | head -n 1)
sed "s/127\.0\.0\.11/$server/" /etc/nginx/conf.d/default.conf > /tmp/gateway.conf
cat > /tmp/nginx.conf << END
daemon off; pid /tmp/nginx.pid; error_log stderr; events {}
http {
    access_log off;
    client_body_temp_path /tmp/body; proxy_temp_path /tmp/proxy; fastcgi_temp_path /tmp/fastcgi;
    uwsgi_temp_path /tmp/uwsgi; scgi_temp_path /tmp/scgi;
    include /tmp/gateway.conf;
}
END
exec nginx -c /tmp/nginx.conf
