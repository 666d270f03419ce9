package config

import (
	"strings"
	"testing"
)

func TestFabricValidateNamesEveryField(t *testing.T) {
	good := DefaultController()
	good.OpenStack.Cluster, good.OpenStack.Fabric = "prod", &Fabric{Pairs: PairsPerBlock, Router: "between"}
	if err := good.Validate([]string{DriverNative}); err != nil {
		t.Error(err)
	}
	bad := DefaultController()
	bad.OpenStack = OpenStack{CloudsFile: "clouds.yaml", Fabric: &Fabric{Pairs: "Some", SecurityGroup: strings.Repeat("g", 256), Router: strings.Repeat("r", 256)}}
	err := bad.Validate([]string{DriverNative})
	for _, part := range []string{
		`openstack.cluster: "": must not be empty if`, `openstack.cloudsFile: "clouds.yaml": must be an absolute path`, `openstack.cloud: ""`,
		`openstack.fabric.pairs: "Some": must be "PerPool" or "PerBlock"`, "openstack.fabric.securityGroup:", "openstack.fabric.router:",
	} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%v, want %q", err, part)
		}
	}
	bad.OpenStack.Cluster = "Prod"
	if err := bad.Validate([]string{DriverNative}); err == nil || !strings.Contains(err.Error(), `openstack.cluster: "Prod"`) {
		t.Error(err)
	}
}
