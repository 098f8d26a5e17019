{{/* The names of objects begin with it. */}}
{{- define "monodon.name" -}}
{{- if contains "monodon" .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-monodon" .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "monodon.labels" -}}
app.kubernetes.io/name: monodon
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{/* The labels that select the pods of a component: (dict "root" $ "component" "web"). */}}
{{- define "monodon.selector" -}}
app.kubernetes.io/name: monodon
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "monodon.image" -}}
{{- printf "%s:%s" .image (default .root.Chart.AppVersion .root.Values.image.tag) -}}
{{- end -}}

{{- define "monodon.secret" -}}
{{- required "Set `secret` to the name of a Secret with DATABASE_URL, REDIS_URL and MONODON_SECRET_KEY" .Values.secret -}}
{{- end -}}

{{- define "monodon.sparkMaster" -}}
{{- if .Values.spark.master -}}
{{- .Values.spark.master -}}
{{- else if .Values.spark.standalone.enabled -}}
{{- printf "spark://%s-spark-master:7077" (include "monodon.name" .) -}}
{{- end -}}
{{- end -}}

{{/* The environment of a container of the server. */}}
{{- define "monodon.environment" -}}
envFrom:
  - configMapRef:
      name: {{ include "monodon.name" . }}
  - secretRef:
      name: {{ include "monodon.secret" . }}
{{- end -}}

{{/* Only the bootstrap job reads the secrets of the first user. */}}
{{- define "monodon.withoutFirstUser" -}}
- name: MONODON_ADMIN_PASSWORD
  value: ""
- name: MONODON_ADMIN_API_KEY
  value: ""
{{- end -}}

{{- define "monodon.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "monodon.containerSecurity" -}}
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
{{- end -}}

{{- define "monodon.mounts" -}}
- name: home
  mountPath: /var/lib/monodon
- name: warehouse
  mountPath: /var/lib/monodon/warehouse
  {{- if .Values.warehouse.objectStoresOnly }}
  readOnly: true
  {{- end }}
- name: tmp
  mountPath: /tmp
{{- end -}}

{{- define "monodon.volumes" -}}
- name: home
  emptyDir: {}
- name: tmp
  emptyDir: {}
- name: warehouse
  {{- if .Values.warehouse.objectStoresOnly }}
  emptyDir: {}
  {{- else }}
  persistentVolumeClaim:
    claimName: {{ default (printf "%s-warehouse" (include "monodon.name" .)) .Values.warehouse.existingClaim }}
  {{- end }}
{{- end -}}

{{/* Waits for the migrations of this release, which the bootstrap job applies. */}}
{{- define "monodon.waiting" -}}
- name: wait-for-bootstrap
  image: {{ include "monodon.image" (dict "root" . "image" .Values.image.web) }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  command: ["sh", "-c", "until python manage.py migrate --check >/dev/null 2>&1; do sleep 3; done"]
  {{- include "monodon.environment" . | nindent 2 }}
  securityContext:
    {{- include "monodon.containerSecurity" . | nindent 4 }}
  resources:
    requests: {cpu: 100m, memory: 256Mi}
    limits: {memory: 1Gi}
  volumeMounts:
    {{- include "monodon.mounts" . | nindent 4 }}
{{- end -}}

{{/* What all pods of the server share: (dict "root" $ "values" .Values.web). */}}
{{- define "monodon.pod" -}}
serviceAccountName: {{ include "monodon.name" .root }}
automountServiceAccountToken: false
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  {{- include "monodon.podSecurity" .root | nindent 2 }}
{{- with .values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* A Deployment of Celery workers: (dict "root" $ "component" "jobs" "queue" "$MONODON_QUEUE.jobs"). */}}
{{- define "monodon.worker" -}}
{{- $root := .root }}
{{- $values := index .root.Values .component }}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ include "monodon.name" $root }}-{{ .component }}
  labels:
    {{- include "monodon.labels" $root | nindent 4 }}
    app.kubernetes.io/component: {{ .component }}
spec:
  replicas: {{ $values.replicas }}
  selector:
    matchLabels:
      {{- include "monodon.selector" . | nindent 6 }}
  template:
    metadata:
      labels:
        {{- include "monodon.selector" . | nindent 8 }}
      annotations:
        checksum/settings: {{ include (print $root.Template.BasePath "/configmap.yaml") $root | sha256sum }}
        {{- with $root.Values.podAnnotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    spec:
      {{- include "monodon.pod" (dict "root" $root "values" $values) | nindent 6 }}
      # A job that is ended continues in another worker.
      terminationGracePeriodSeconds: 60
      initContainers:
        {{- include "monodon.waiting" $root | nindent 8 }}
      containers:
        - name: worker
          image: {{ include "monodon.image" (dict "root" $root "image" $root.Values.image.worker) }}
          imagePullPolicy: {{ $root.Values.image.pullPolicy }}
          command:
            - sh
            - -c
            - >-
              exec celery --quiet --skip-checks -A tasks worker --loglevel info
              --concurrency {{ $values.concurrency }} --queues "{{ .queue }}"
          {{- include "monodon.environment" $root | nindent 10 }}
          env:
            {{- include "monodon.withoutFirstUser" $root | nindent 12 }}
            # The executors of a cluster reach the driver at the address of its pod.
            - name: SPARK_LOCAL_IP
              valueFrom:
                fieldRef:
                  fieldPath: status.podIP
          securityContext:
            {{- include "monodon.containerSecurity" $root | nindent 12 }}
          livenessProbe:
            exec:
              command: ["sh", "-c", "celery -A tasks inspect ping -d celery@$HOSTNAME --timeout 10"]
            initialDelaySeconds: 60
            periodSeconds: 120
            timeoutSeconds: 30
            failureThreshold: 3
          resources:
            {{- toYaml $values.resources | nindent 12 }}
          volumeMounts:
            {{- include "monodon.mounts" $root | nindent 12 }}
      volumes:
        {{- include "monodon.volumes" $root | nindent 8 }}
{{- end -}}
