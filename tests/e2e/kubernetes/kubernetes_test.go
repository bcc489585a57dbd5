package kubernetes

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	resource "k8s.io/api/resource/v1"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// network is k8s.cni.cncf.io/v1 NetworkAttachmentDefinition, as its CRD has it.
type network struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name        string            `json:"name"`
		Labels      map[string]string `json:"labels"`
		Annotations map[string]string `json:"annotations"`
	} `json:"metadata"`
	Spec struct {
		Config string `json:"config"`
	} `json:"spec"`
}

// overlay is what kustomize builds of one.
type overlay struct {
	deployment apps.Deployment
	configs    map[string]core.ConfigMap
	networks   map[string]network
	classes    map[string]resource.DeviceClass
	claims     map[string]resource.ResourceClaimTemplate
}

// build builds an overlay and decodes it.
func build(t *testing.T, name string) (o overlay) {
	t.Helper()
	all, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(),
		"../../../deploy/kubernetes/overlays/"+name)
	if err != nil {
		t.Fatal(err)
	}
	o.configs, o.networks = map[string]core.ConfigMap{}, map[string]network{}
	o.classes = map[string]resource.DeviceClass{}
	o.claims = map[string]resource.ResourceClaimTemplate{}
	for _, r := range all.Resources() {
		text, err := r.AsYAML()
		if err == nil {
			err = o.decode(r.GetKind(), r.GetApiVersion(), r.GetName(), text)
		}
		if err != nil {
			t.Errorf("%s %s: %v", r.GetKind(), r.GetName(), err)
		}
	}
	return o
}

// decode decodes one object strictly. A kind that is not expected is an error.
func (o *overlay) decode(kind, version, name string, text []byte) error {
	switch version + " " + kind {
	case "apps/v1 Deployment":
		return yaml.UnmarshalStrict(text, &o.deployment)
	case "v1 ConfigMap":
		return into(o.configs, name, text)
	case "k8s.cni.cncf.io/v1 NetworkAttachmentDefinition":
		return into(o.networks, name, text)
	case "resource.k8s.io/v1 DeviceClass":
		return into(o.classes, name, text)
	case "resource.k8s.io/v1 ResourceClaimTemplate":
		return into(o.claims, name, text)
	}
	return fmt.Errorf("%s %s is not expected", version, kind)
}

func into[T any](all map[string]T, name string, text []byte) error {
	var v T
	err := yaml.UnmarshalStrict(text, &v)
	all[name] = v
	return err
}

// TestStrict: what the API does not know is refused, so that the other tests can fail.
func TestStrict(t *testing.T) {
	for name, text := range map[string]string{
		"field":     "spec: {replica: 1}",
		"place":     "spec: {hostNetwork: true}",
		"type":      "spec: {replicas: many}",
		"twice":     "spec: {replicas: 1, replicas: 2}",
		"container": "spec: {template: {spec: {containers: [{name: x, imgae: y}]}}}",
	} {
		var o overlay
		if o.decode("Deployment", "apps/v1", "x", []byte(text)) == nil {
			t.Errorf("%s: %s is taken", name, text)
		}
	}
}

// TestOverlays: each overlay has a pod that may do what a server needs and no more, is probed on
// the pod's own network, and refers to nothing that is not there.
func TestOverlays(t *testing.T) {
	for name, caps := range map[string][]core.Capability{
		"hostnetwork": {"NET_RAW", "IPC_LOCK", "NET_BIND_SERVICE", "NET_ADMIN", "BPF"},
		"sriov":       {"NET_RAW", "IPC_LOCK"},
		"dra":         {"NET_RAW", "IPC_LOCK", "NET_BIND_SERVICE", "NET_ADMIN", "BPF"},
	} {
		t.Run(name, func(t *testing.T) {
			o := build(t, name)
			spec := o.deployment.Spec.Template.Spec
			if len(spec.Containers) != 1 {
				t.Fatalf("%d containers", len(spec.Containers))
			}
			c := spec.Containers[0]
			for k, v := range o.deployment.Spec.Selector.MatchLabels {
				if got := o.deployment.Spec.Template.Labels[k]; got != v {
					t.Errorf("label %s of the pod is %q, the selector wants %q", k, got, v)
				}
			}
			if len(o.deployment.Spec.Selector.MatchLabels) == 0 {
				t.Error("the selector selects everything")
			}
			security := c.SecurityContext
			if !slices.Equal(security.Capabilities.Add, caps) ||
				!slices.Equal(security.Capabilities.Drop, []core.Capability{"ALL"}) ||
				*security.AllowPrivilegeEscalation || !*security.ReadOnlyRootFilesystem ||
				security.Privileged != nil {
				t.Errorf("%+v", security)
			}
			if spec.HostUsers != nil && !*spec.HostUsers {
				t.Error("hostUsers: false takes the capability for raw queue pairs away")
			}
			if spec.HostNetwork != (name == "hostnetwork") {
				t.Errorf("hostNetwork is %v", spec.HostNetwork)
			}
			checkProbes(t, c)
			checkVolumes(t, o, spec)
		})
	}
}

// checkProbes: kubelet's addresses are those of the kernel, where --admin listens.
func checkProbes(t *testing.T, c core.Container) {
	t.Helper()
	admin := slices.Index(c.Args, "--admin")
	if admin < 0 || len(c.Ports) != 1 ||
		c.Args[admin+1] != fmt.Sprintf(":%d", c.Ports[0].ContainerPort) {
		t.Errorf("--admin of %q, ports %+v", c.Args, c.Ports)
	}
	for what, get := range map[string]*core.HTTPGetAction{"startup": c.StartupProbe.HTTPGet,
		"readiness": c.ReadinessProbe.HTTPGet} {
		if get == nil || get.Port.StrVal != c.Ports[0].Name || !slices.Contains(
			[]string{"/healthz", "/readyz"}, get.Path) {
			t.Errorf("%s: %+v", what, get)
		}
	}
}

// checkVolumes: each mount has a volume, each volume a ConfigMap.
func checkVolumes(t *testing.T, o overlay, spec core.PodSpec) {
	t.Helper()
	for _, m := range spec.Containers[0].VolumeMounts {
		at := slices.IndexFunc(spec.Volumes, func(v core.Volume) bool { return v.Name == m.Name })
		if at < 0 {
			t.Fatalf("no volume %s", m.Name)
		}
		if from := spec.Volumes[at].ConfigMap; from != nil && o.configs[from.Name].Name == "" {
			t.Errorf("no ConfigMap %s among %d", from.Name, len(o.configs))
		}
	}
}

// TestSRIOV: the plugin finds its settings by their name, and what it hands out is what the network
// asks for and the pod; the pod asks for the network by its name.
func TestSRIOV(t *testing.T) {
	o := build(t, "sriov")
	config, ok := o.configs["sriovdp-config"]
	if !ok || config.Namespace != "kube-system" {
		t.Fatalf("no ConfigMap sriovdp-config: the plugin's DaemonSet mounts it; there are %d",
			len(o.configs))
	}
	var plugin struct {
		ResourceList []struct {
			ResourcePrefix, ResourceName string
			Selectors                    struct {
				Vendors, Drivers []string
				IsRdma           bool
			}
		}
	}
	if err := json.Unmarshal([]byte(config.Data["config.json"]), &plugin); err != nil {
		t.Fatal(err)
	}
	if len(plugin.ResourceList) != 1 || !plugin.ResourceList[0].Selectors.IsRdma {
		t.Fatalf("%+v", plugin)
	}
	name := plugin.ResourceList[0].ResourcePrefix + "/" + plugin.ResourceList[0].ResourceName
	pod := o.deployment.Spec.Template
	for what, list := range map[string]core.ResourceList{
		"requests": pod.Spec.Containers[0].Resources.Requests,
		"limits":   pod.Spec.Containers[0].Resources.Limits} {
		if n := list[core.ResourceName(name)]; n.Value() != 1 {
			t.Errorf("%s: %v of %s", what, n, name)
		}
	}
	var wanted []struct{ Name, Interface string }
	text := pod.Annotations["k8s.v1.cni.cncf.io/networks"]
	if err := json.Unmarshal([]byte(text), &wanted); err != nil || len(wanted) != 1 {
		t.Fatalf("%q: %v", text, err)
	}
	n, ok := o.networks[wanted[0].Name]
	if !ok || n.Metadata.Annotations["k8s.v1.cni.cncf.io/resourceName"] != name {
		t.Errorf("network %s: %+v", wanted[0].Name, n)
	}
	var cni struct{ CNIVersion, Type string }
	if err := json.Unmarshal([]byte(n.Spec.Config), &cni); err != nil || cni.Type != "sriov" {
		t.Errorf("%s: %v", n.Spec.Config, err)
	}
	checkDevice(t, o, wanted[0].Interface)
}

// TestDRA: the pod's claim is of the template, and that of the class.
func TestDRA(t *testing.T) {
	o := build(t, "dra")
	spec := o.deployment.Spec.Template.Spec
	if len(spec.ResourceClaims) != 1 || len(spec.Containers[0].Resources.Claims) != 1 ||
		spec.Containers[0].Resources.Claims[0].Name != spec.ResourceClaims[0].Name {
		t.Fatalf("claims of the pod %+v, of its container %+v", spec.ResourceClaims,
			spec.Containers[0].Resources.Claims)
	}
	template, ok := o.claims[*spec.ResourceClaims[0].ResourceClaimTemplateName]
	if !ok {
		t.Fatalf("no template %s", *spec.ResourceClaims[0].ResourceClaimTemplateName)
	}
	devices := template.Spec.Spec.Devices
	class, ok := o.classes[devices.Requests[0].Exactly.DeviceClassName]
	if !ok || !strings.Contains(class.Spec.Selectors[0].CEL.Expression, `["dra.net"].rdma`) {
		t.Errorf("class %s: %+v", devices.Requests[0].Exactly.DeviceClassName, class)
	}
	var parameters struct{ Interface struct{ Name string } }
	if err := json.Unmarshal(devices.Config[0].Opaque.Parameters.Raw, &parameters); err != nil {
		t.Fatal(err)
	}
	checkDevice(t, o, parameters.Interface.Name)
}

// checkDevice: the server opens the interface that the pod is given.
func checkDevice(t *testing.T, o overlay, name string) {
	t.Helper()
	args := o.deployment.Spec.Template.Spec.Containers[0].Args
	if at := slices.Index(args, "--device"); at < 0 || args[at+1] != name {
		t.Errorf("the server has %q, the pod has interface %s", args, name)
	}
}
