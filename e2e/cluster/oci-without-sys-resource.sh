#!/bin/sh
# OCI runtime in front of runc for machines whose bounding set has no CAP_SYS_RESOURCE. Docker 20.10 asks for every
# capability it knows when a container or an exec is privileged, and runc then fails with "unable to apply caps:
# operation not permitted". The one capability nobody can have here is taken out of the specification first.
specification=
previous=
for argument in "$@"; do
    case $previous in
    --bundle | -b) specification=$argument/config.json ;;
    --process | -p) specification=$argument ;;
    esac
    case $argument in
    --bundle=*) specification=${argument#*=}/config.json ;;
    --process=*) specification=${argument#*=} ;;
    esac
    previous=$argument
done
if [ -f "$specification" ]; then
    sed -i -e 's/"CAP_SYS_RESOURCE",//g' -e 's/,"CAP_SYS_RESOURCE"//g' "$specification"
fi
exec runc "$@"
