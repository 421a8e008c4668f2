{{/* Names, labels, and what all pods of VENUS have in common. */}}
{{- define "venus.labels" -}}
app.kubernetes.io/name: venus
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "venus.selector" -}}
app.kubernetes.io/name: venus
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "venus.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "venus.addresses" -}}
{{- $root := . -}}
{{- range $i := until (int .Values.brokers.replicas) -}}
{{- if $i }},{{ end }}{{ $root.Release.Name }}-broker-{{ $i }}.{{ $root.Release.Name }}-brokers.{{ $root.Release.Namespace }}.svc:7400
{{- end -}}
{{- end }}

{{- define "venus.security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
runAsUser: 7400
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* Values that cannot be together are refused before anything is installed. */}}
{{- define "venus.check" -}}
{{- $n := int .Values.brokers.replicas -}}
{{- if and (gt $n 1) (not .Values.brokers.etcd) -}}
{{- fail (printf "brokers.replicas is %d: name an etcd in brokers.etcd, or set it to 1" $n) -}}
{{- end -}}
{{- if and (not .Values.tls.secretName) (not .Values.tls.insecure) -}}
{{- fail "tls.secretName is empty: name a secret with tls.crt, tls.key and ca.crt, or set tls.insecure to true" -}}
{{- end -}}
{{- if .Values.tls.secretName -}}
{{- if and .Values.capture.enabled (not .Values.capture.tlsSecretName) -}}
{{- fail "capture.tlsSecretName is empty: with TLS capture needs a certificate of the role producer" -}}
{{- end -}}
{{- range .Values.targets -}}
{{- if not .tlsSecretName -}}{{- fail (printf "targets: %s has no tlsSecretName: with TLS it needs a certificate of the role consumer" .name) -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}
