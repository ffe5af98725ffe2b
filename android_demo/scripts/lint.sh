#!/bin/bash
# ktlint over all Kotlin, detekt over what goes into the app. Needs a JDK 17 and Maven.
# usage: lint.sh [--format]
set -eu
cd "$(dirname "$0")/.."
out=$PWD/jvm-tests/target/lint
mkdir -p "$out"
for tool in ktlint detekt; do # apart: each brings its own Kotlin compiler
    mvn -B -ntp -q -f "tools/$tool/pom.xml" \
        org.apache.maven.plugins:maven-dependency-plugin:3.8.1:build-classpath -Dmdep.outputFile="$out/$tool.cp"
done
java -cp "$(cat "$out/ktlint.cp")" com.pinterest.ktlint.Main --relative "$@" \
    '*.kts' '*/*.kts' 'app/src/**/*.kt' 'edgealbert/src/**/*.kt' 'jvm-tests/app/src/**/*.kt'
java -cp "$(cat "$out/detekt.cp")" io.gitlab.arturbosch.detekt.cli.Main --build-upon-default-config \
    --config tools/detekt/detekt.yml --jvm-target 1.8 --input app/src/main/kotlin,edgealbert/src/main/kotlin
echo "ktlint and detekt found nothing"
