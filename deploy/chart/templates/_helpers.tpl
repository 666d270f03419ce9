{{/* The image of both programs. */}}
{{- define "fairlead.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The configuration of fairlead-controller. Its Lease is in the namespace of the release. */}}
{{- define "fairlead.controllerConfig" -}}
# fairlead-controller: see docs/operator/configuration.md. A field that is not here
# has its default.
{{ $config := deepCopy .Values.controller.config -}}
{{- if and (ne .Release.Namespace "fairlead-system") (not (dig "leaderElection" "namespace" "" $config)) -}}
{{- $config = merge $config (dict "leaderElection" (dict "namespace" .Release.Namespace)) -}}
{{- end -}}
{{ toYaml $config }}
{{- end -}}

{{/* The configuration of fairlead-node. */}}
{{- define "fairlead.nodeConfig" -}}
# fairlead-node: see docs/operator/configuration.md. A field that is not here has
# its default. The directories are the runtime's on the node, and the DaemonSet
# mounts them under the same paths: with kustomize, change both.
{{ toYaml .Values.node.config }}
{{- end -}}

{{/*
The fields of a schema, .want, that another schema, .have, lacks, in words: the API server
would drop their values without a word.
*/}}
{{- define "fairlead.missingFields" -}}
{{- $have := .have -}}
{{- $path := .path -}}
{{- range $name, $want := .want.properties -}}
{{- $field := printf "%s.%s" $path $name -}}
{{- if hasKey (dig "properties" dict $have) $name -}}
{{- include "fairlead.missingFields" (dict "want" $want "have" (index $have.properties $name) "path" $field) -}}
{{- else }} {{ $field }}
{{- end -}}
{{- end -}}
{{- with .want.items -}}
{{- include "fairlead.missingFields" (dict "want" . "have" (dig "items" dict $have) "path" (printf "%s[]" $path)) -}}
{{- end -}}
{{- end -}}

{{/* The port of an address host:port; empty if the metrics are off or on a socket. */}}
{{- define "fairlead.metricsPort" -}}
{{- if not (hasPrefix "unix:" .) -}}
{{- regexFind "[1-9][0-9]*$" (regexFind ":[0-9]+$" .) -}}
{{- end -}}
{{- end -}}
