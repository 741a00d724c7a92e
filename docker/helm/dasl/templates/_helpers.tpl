{{- define "dasl.labels" -}}
app.kubernetes.io/name: dasl
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "dasl.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "dasl.containerSecurity" -}}
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
readOnlyRootFilesystem: true
{{- end }}

{{- define "dasl.serverEnv" -}}
- name: DASL_DATABASE_URL
  valueFrom: {secretKeyRef: {name: {{ .Values.database.secretName }}, key: {{ .Values.database.secretKey }}}}
- {name: DASL_ARTIFACTS_URI, value: {{ .Values.artifacts.uri | default "file:///artifacts" | quote }}}
- {name: DASL_DATASET_ROOTS, value: /data}
- {name: DASL_API_URL, value: "http://{{ .Release.Name }}-api:{{ .Values.api.port }}"}
{{- with .Values.clusterLimit }}
- {name: DASL_CLUSTER_LIMIT, value: {{ . | quote }}}
{{- end }}
{{- range $name, $value := .Values.settings }}
- {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- end }}

{{- define "dasl.envFrom" -}}
{{- with .Values.artifacts.credentialsSecretName }}
envFrom:
  - secretRef: {name: {{ . }}}
{{- end }}
{{- end }}

{{- define "dasl.artifactsClaim" -}}
{{ .Values.artifacts.existingClaim | default (printf "%s-artifacts" .Release.Name) }}
{{- end }}

{{- define "dasl.rayPod" -}}
securityContext:
  {{- include "dasl.podSecurity" .root | nindent 2 }}
{{- /* Only Ray's autoscaler, beside the head, calls Kubernetes. */}}
automountServiceAccountToken: {{ and .head .root.Values.autoscaler.enabled }}
{{- with .root.Values.images.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - {name: {{ . }}}
  {{- end }}
{{- end }}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
# A training saves a checkpoint when the dispatcher asks it to, not when its node is stopped.
terminationGracePeriodSeconds: 30
containers:
  - name: ray
    image: {{ .root.Values.images.worker | quote }}
    imagePullPolicy: {{ .root.Values.images.pullPolicy }}
    securityContext:
      {{- include "dasl.containerSecurity" .root | nindent 6 }}
    env:
      - {name: RAY_AUTH_MODE, value: token}
      - name: RAY_AUTH_TOKEN
        valueFrom: {secretKeyRef: {name: {{ .root.Values.ray.tokenSecretName }}, key: {{ .root.Values.ray.tokenSecretKey }}}}
      - {name: DASL_CACHE_DIR, value: /cache}
      - {name: DASL_CACHE_MAX_BYTES, value: {{ .root.Values.cache.maxBytes | quote }}}
      - {name: HOME, value: /tmp}
    {{- include "dasl.envFrom" .root | nindent 4 }}
    {{- if .head }}
    ports:
      - {name: gcs, containerPort: 6379}
      - {name: dashboard, containerPort: 8265}
    {{- end }}
    # Those of KubeRay need wget, which the image has not.
    {{- range list "readinessProbe" "livenessProbe" }}
    {{ . }}:
      exec: {command: [python, /usr/local/lib/dasl/health.py, "http://127.0.0.1:52365/api/healthz"]}
      initialDelaySeconds: 20
      periodSeconds: 15
      timeoutSeconds: 20
      failureThreshold: {{ ternary 40 4 (eq . "livenessProbe") }}
    {{- end }}
    resources:
      {{- toYaml .resources | nindent 6 }}
    volumeMounts:
      - {name: data, mountPath: /data, readOnly: true}
      {{- if not .root.Values.artifacts.uri }}
      - {name: artifacts, mountPath: /artifacts}
      {{- end }}
      - {name: cache, mountPath: /cache}
      - {name: tmp, mountPath: /tmp}
      - {name: shm, mountPath: /dev/shm}
volumes:
  - name: data
    persistentVolumeClaim: {claimName: {{ .root.Values.data.existingClaim }}, readOnly: true}
  {{- if not .root.Values.artifacts.uri }}
  - name: artifacts
    persistentVolumeClaim: {claimName: {{ include "dasl.artifactsClaim" .root }}}
  {{- end }}
  - name: cache
    emptyDir: {sizeLimit: {{ .root.Values.cache.size }}}
  - name: tmp
    emptyDir: {}
  - name: shm
    emptyDir: {medium: Memory, sizeLimit: {{ .sharedMemory }}}
{{- end }}

{{- define "dasl.serverPod" -}}
securityContext:
  {{- include "dasl.podSecurity" .root | nindent 2 }}
automountServiceAccountToken: false
{{- with .root.Values.images.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - {name: {{ . }}}
  {{- end }}
{{- end }}
{{- end }}
