{{/* The labels of everything of this release. */}}
{{- define "stallscope.labels" -}}
app.kubernetes.io/name: stallscope
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end -}}

{{/* The address of the shards as the engine and the exporter are given it: {rank} stands in it. */}}
{{- define "stallscope.shardUrl" -}}
{{ ternary "resps" "resp" .Values.valkeySpec.tls.enabled }}://{{ .Values.valkeySpec.namePrefix }}-{rank}.{{ .Release.Namespace }}.svc.cluster.local:{{ .Values.valkeySpec.port }}
{{- end -}}

{{/* The same for the engine, whose client is told the CA in the address. */}}
{{- define "stallscope.engineUrl" -}}
{{ include "stallscope.shardUrl" . }}{{ if .Values.valkeySpec.tls.enabled }}?ca=/tls/ca.crt{{ end }}
{{- end -}}

{{/* Bytes of one shard's maxMemory. */}}
{{- define "stallscope.maxMemoryBytes" -}}
{{- $text := .Values.valkeySpec.maxMemory -}}
{{- $unit := ternary 1073741824 1048576 (hasSuffix "gb" $text) -}}
{{- mul (regexFind "^[0-9]+" $text | int64) $unit -}}
{{- end -}}

{{/* The memory limit of a shard in MiB: headroom times maxMemory, rounded up. */}}
{{- define "stallscope.memoryMiB" -}}
{{- $bytes := include "stallscope.maxMemoryBytes" . | int64 -}}
{{- $percent := mulf .Values.valkeySpec.memoryHeadroom 100 | ceil | int64 -}}
{{- add1 (div (mul (div $bytes 1048576) $percent) 100) -}}
{{- end -}}

{{/* Refuses what the schema cannot: values that do not go together. */}}
{{- define "stallscope.check" -}}
{{- if and .Values.valkeySpec.tls.enabled (not .Values.valkeySpec.tls.secretName) -}}
{{- fail "valkeySpec.tls.enabled needs valkeySpec.tls.secretName: a Secret with tls.crt, tls.key and ca.crt" -}}
{{- end -}}
{{- if and .Values.engine.enabled (ne (int .Values.engine.ranks) (int .Values.valkeySpec.shards)) -}}
{{- fail (printf "engine.ranks is %d and valkeySpec.shards is %d: each rank needs a shard of its own" (int .Values.engine.ranks) (int .Values.valkeySpec.shards)) -}}
{{- end -}}
{{- $last := 0.0 -}}
{{- range .Values.engine.ttftBuckets -}}
{{- if le (float64 .) $last -}}
{{- fail (printf "engine.ttftBuckets: %v comes after %v; give them in rising order" . $last) -}}
{{- end -}}
{{- $last = float64 . -}}
{{- end -}}
{{- end -}}
