{{/* The access of fairlead-node to its node, of the daemon as of the clean-up. */}}
{{- define "fairlead.nodeAccess" -}}
{{- $config := .Values.node.config }}
{{- $stateDir := $config.stateDir | default "/run/fairlead" }}
{{- $podResources := dir ($config.podResourcesSocket | default "/var/lib/kubelet/pod-resources/kubelet.sock") }}
{{- $openVSwitch := dir ($config.ovsdbSocket | default "/run/openvswitch/db.sock") -}}
env:
  - name: NODE_NAME
    valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
securityContext:
  # Root without its powers: the host's directories and the socket are
  # root's, and only root's processes are served.
  runAsUser: 0
  runAsGroup: 0
  readOnlyRootFilesystem: true
  {{- if .Values.node.delegation }}
  # A writable /proc/sys, for tuning and other plugins that set sysctls. The
  # capabilities of the plugins, and those to enter namespaces of any process.
  privileged: true
  {{- else }}
  capabilities:
    drop: [ALL]
    add:
      # Links, addresses, routes, nftables, and settings of the network,
      # on the host and in pods.
      - NET_ADMIN
      # Echo requests with the address of a pod, which show whether the
      # network between nodes drops such packets.
      - NET_RAW
      # Entering a pod's network namespace (setns), and a /proc of its
      # own, mounted nowhere, because in a container /proc/sys is
      # read-only.
      - SYS_ADMIN
  {{- end }}
volumeMounts:
  - {name: config, mountPath: /etc/fairlead, readOnly: true}
  # The socket, and the records of plugged pods: on the host, as
  # pods live longer than the daemon; on tmpfs, as they end at a boot.
  - {name: state, mountPath: {{ $stateDir }}}
  - {name: cni-bin, mountPath: {{ $config.cni.binDir }}}
  - {name: cni-conf, mountPath: {{ $config.cni.confDir }}}
  # Namespaces that the runtime makes later must appear here, too.
  - {name: netns, mountPath: /run/netns, mountPropagation: HostToContainer}
  # The kubelet's socket that lists the devices of pods. The directory, as the
  # kubelet makes the socket anew when it starts.
  - {name: pod-resources, mountPath: {{ $podResources }}, readOnly: true}
  {{- if .Values.node.openVSwitch }}
  - {name: openvswitch, mountPath: {{ $openVSwitch }}}
  {{- end }}
  {{- if .Values.node.delegation }}
  # The addresses that host-local has given.
  - {name: cni-state, mountPath: /var/lib/cni}
  # The former values that tuning restores.
  - {name: cni-run, mountPath: /run/cni}
  {{- end }}
{{- end -}}
