#!/bin/bash
# Packs the app without Google's servers: aapt2, ProGuard and dx from Debian and Maven Central, with TensorFlow Lite as
# the engine, since its native libraries are on Maven Central. Gradle is the way to build an APK for a store; this one is
# complete and installable, and CI can make and check it.
#
#     python -m edge_albert.export --format tflite --tflite-compat --android assets
#     android_demo/scripts/apk.sh assets/bundle
#
# Debian packages: aapt zipalign apksigner zip binutils; a JDK 17 and Maven.
# usage: apk.sh BUNDLE [OUT.apk]
set -eu
die() { echo "apk.sh: $*" >&2; exit 2; }
[ $# -ge 1 ] || die "usage: apk.sh BUNDLE [OUT.apk]"
[ -f "$1/bundle.json" ] || die "$1: no bundle.json: export one with --format tflite --tflite-compat --android DIR"
[ -f "$1/model.tflite" ] || die "$1: no model.tflite: export with --format tflite --tflite-compat"
[ -f "$1/tokenizer_rules.bin" ] || die "$1: no tokenizer_rules.bin: export it with --android DIR"
for tool in aapt2 zipalign apksigner zip unzip readelf mvn java; do
    command -v $tool >/dev/null || die "$tool is missing (Debian: aapt zipalign apksigner zip unzip binutils maven)"
done
bundle=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")/.." && pwd)
apk=$(realpath -m "${2:-$here/jvm-tests/target/apk/edge_albert.apk}")
out=$here/jvm-tests/target/apk
abis="arm64-v8a armeabi-v7a x86_64"
property() { sed -n "s|.*<$1>\(.*\)</$1>.*|\1|p" "$here/jvm-tests/pom.xml"; }
min_sdk=$(property android.minSdk)
rm -rf "$out"
mkdir -p "$out/assets/bundle" "$out/pack" "$(dirname "$apk")"

# -- compile the very sources that the JVM tests run, and find the jars
classpath=org.apache.maven.plugins:maven-dependency-plugin:3.8.1:build-classpath
mvn -B -ntp -q -f "$here/jvm-tests/pom.xml" process-classes $classpath -DincludeScope=compile -Dmdep.outputFile=target/compile.cp
mvn -B -ntp -q -f "$here/tools/apk/pom.xml" $classpath -Dmdep.outputFile="$out/tools.cp"
tools=$(cat "$out/tools.cp")
jar() { tr ':' '\n' <"$here/jvm-tests/app/target/compile.cp" | grep "/$1-[0-9][^/]*\.jar$"; }

# -- resources and assets; the bundle's files are stored, not deflated
cp "$bundle"/bundle.json "$out/assets/bundle"
for file in $(sed -n '/"files": {/,/^ },*$/s/^  "\([^"]*\)": {.*/\1/p' "$bundle/bundle.json"); do
    [ "$file" = model.onnx ] && die "$bundle: has model.onnx too, which this app would carry for nothing: export with --format tflite"
    cp "$bundle/$file" "$out/assets/bundle"
done
sed -e 's|<manifest |<manifest package="io.edgealbert.demo" android:versionCode="1" android:versionName="1.0" |' \
    -e 's|<application|<application android:extractNativeLibs="false"|' \
    "$here/app/src/main/AndroidManifest.xml" >"$out/AndroidManifest.xml"
aapt2 compile --dir "$here/app/src/main/res" -o "$out/compiled.zip"
aapt2 link -I "$(jar android-all)" --manifest "$out/AndroidManifest.xml" \
    --min-sdk-version "$min_sdk" --target-sdk-version "$(property android.targetSdk)" \
    -A "$out/assets" -0 .tflite -0 .model -o "$out/unaligned.apk" "$out/compiled.zip"

# -- classes: shrunk, without lambdas, then dex
java -Xmx1g -cp "$tools" proguard.ProGuard \
    -injars "$here/jvm-tests/app/target/classes" \
    -injars "$(jar kotlin-stdlib)(!META-INF/**,**.class)" \
    -injars "$here/jvm-tests/tflite/target/classes(**.class)" \
    -libraryjars "$(jar android-all)" \
    -libraryjars "<java.home>/jmods/java.base.jmod(!**.jar;!module-info.class)" \
    -libraryjars "<java.home>/jmods/java.logging.jmod(!**.jar;!module-info.class)" \
    -outjars "$out/app.jar" "@$here/tools/apk/app.pro" >"$out/proguard.log" || { cat "$out/proguard.log" >&2; exit 1; }
java -Xmx1g -cp "$tools" com.android.dx.command.Main --dex --min-sdk-version="$min_sdk" --output="$out/pack/classes.dex" "$out/app.jar"

# -- native libraries, stored so that Android maps them from the APK
for abi in $abis; do
    mkdir -p "$out/pack/lib/$abi"
    cp "$here/jvm-tests/tflite/target/aar/jni/$abi/"*.so "$out/pack/lib/$abi"
done
(cd "$out/pack" && zip -qX ../unaligned.apk classes.dex && zip -qX0 ../unaligned.apk lib/*/*.so)
zipalign -p 4 "$out/unaligned.apk" "$out/aligned.apk"
keytool -genkeypair -keystore "$out/throwaway.p12" -storetype PKCS12 -storepass throwaway -alias k \
    -keyalg RSA -keysize 2048 -validity 10000 -dname CN=throwaway 2>/dev/null
apksigner sign --ks "$out/throwaway.p12" --ks-pass pass:throwaway --v1-signing-enabled false \
    --min-sdk-version "$min_sdk" --out "$apk" "$out/aligned.apk"
rm -f "$apk.idsig"
exec bash "$here/scripts/check_apk.sh" "$apk" "$bundle/model.tflite"
