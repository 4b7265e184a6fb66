#!/bin/bash
# Fakes MLCommons' R2 downloader: the same call, the same .uri and .md5 files, no logins. Files that are
# there and right are left alone, partial ones are completed.
#   bash mlc-r2-downloader.sh [-d FOLDER] URL_OF_METADATA.uri
set -e
folder=""
while getopts "d:sx" option; do
  case "$option" in
    d) folder="$OPTARG" ;;
    s | x) ;;
    *) exit 1 ;;
  esac
done
shift $((OPTIND - 1))
[ -n "$1" ] || { echo "Error: A download URL is required as a mandatory argument." >&2; exit 1; }
name="$(basename "$1" .uri)"
base="$(curl -fsS "$1")" || { echo "Error: cannot read $1" >&2; exit 1; }
# A real .uri file holds a whole URL; this one may name its place relative to itself.
case "$base" in
  http*) ;;
  *) base="$(dirname "$1")/$base" ;;
esac
: "${folder:=${name}}"
mkdir -p "$folder"
cd "$folder"
curl -fsS -o "${name}.md5" "${base}/${name}.md5"
while read -r sum path; do
  if echo "$sum  $path" | md5sum --check --status 2>/dev/null; then
    echo "$path: there already"
    continue
  fi
  mkdir -p "$(dirname "$path")"
  curl -fsS -C - -o "$path" "${base}/${path}" || curl -fsS -o "$path" "${base}/${path}"
  if ! echo "$sum  $path" | md5sum --check --status; then
    # The earlier content of the file was not the beginning of this download.
    curl -fsS -o "$path" "${base}/${path}"
    echo "$sum  $path" | md5sum --check --status || { echo "Error: $path: checksum differs" >&2; exit 1; }
  fi
  echo "$path: downloaded"
done < "${name}.md5"
echo "All files of ${name} are in ${PWD} and checked."
