{{- define "pratique.name" -}}
{{- if contains "pratique" .Release.Name }}{{ .Release.Name | trunc 44 | trimSuffix "-" }}-operator{{ else }}{{ .Release.Name | trunc 35 | trimSuffix "-" }}-pratique-operator{{ end -}}
{{- end -}}

{{- define "pratique.selector" -}}
app.kubernetes.io/name: pratique-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "pratique.labels" -}}
{{ include "pratique.selector" . }}
app.kubernetes.io/component: operator
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}
