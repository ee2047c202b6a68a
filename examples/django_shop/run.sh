# The site with its worker, for development: sh run.sh
set -e
cd "$(dirname "$0")"
python manage.py migrate --verbosity 0
DJANGO_SUPERUSER_PASSWORD=admin python manage.py createsuperuser --noinput --username admin --email admin@example.org \
    2>/dev/null || true # it is there already
python manage.py tenure worker &
trap 'kill $! 2>/dev/null; wait' EXIT
python -m uvicorn shop.asgi:application --port "${PORT:-8000}" --timeout-graceful-shutdown 5
