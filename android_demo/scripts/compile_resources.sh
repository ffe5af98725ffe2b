#!/bin/bash
# Compiles the app's resources for the JVM tests, which so need no Android tool: R.java, an APK without assets, and the
# hashes of what they were made from (a test compares them). Run it after a change below app/src/main/res or to the
# manifest. Needs Debian's aapt2 (package aapt) and Maven.
# usage: compile_resources.sh
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
main=$here/app/src/main
out=$here/jvm-tests/app/src/prebuilt
property() { sed -n "s|.*<$1>\(.*\)</$1>.*|\1|p" "$here/jvm-tests/pom.xml"; }
command -v aapt2 >/dev/null || { echo "aapt2 is missing: apt-get install aapt" >&2; exit 2; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# the framework's resources are in the jar that the sources compile against
mvn -B -ntp -q org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy -DoutputDirectory="$work" \
    -Dmdep.stripVersion=true -Dartifact="org.robolectric:android-all:$(property android.all)"
sed 's|<manifest |<manifest package="io.edgealbert.demo" |' "$main/AndroidManifest.xml" >"$work/AndroidManifest.xml"
aapt2 compile --dir "$main/res" -o "$work/compiled.zip"
mkdir "$work/java"
aapt2 link -I "$work/android-all.jar" --manifest "$work/AndroidManifest.xml" \
    --min-sdk-version "$(property android.minSdk)" --target-sdk-version "$(property android.targetSdk)" \
    --java "$work/java" -o "$work/app-res.apk" "$work/compiled.zip"
rm -rf "$out"
mkdir -p "$out"
cp -r "$work/java" "$work/app-res.apk" "$out"
(cd "$main" && sha256sum AndroidManifest.xml $(find res -type f | LC_ALL=C sort)) >"$out/sources.sha256"
