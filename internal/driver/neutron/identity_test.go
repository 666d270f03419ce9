package neutron

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.dev/fairlead/internal/driver"
)

func owner() driver.Owner {
	return driver.Owner{PodUID: "9b2e6f4e-1a2b-4c3d-8e9f-000000000001", Interface: "eth0", Namespace: "blue", PodName: "web-0", NodeName: "node-1"}
}

func TestTextsOfAPort(t *testing.T) {
	long := owner()
	long.Namespace, long.PodName, long.Interface = strings.Repeat("n", 63), strings.Repeat("p", 253), "net-with-15-chr"
	for _, tc := range []struct {
		name string
		holder
		cluster string
		want    texts
		err     string
	}{
		{
			name: "a default interface", cluster: "east", holder: holder{Owner: owner(), network: "default", isDefault: true},
			want: texts{
				"fairlead/east/9b2e6f4e-1a2b-4c3d-8e9f-000000000001/eth0/", "blue/web-0/eth0",
				"network=default node=node-1 default=true",
			},
		},
		{
			name: "the longest names of Kubernetes", cluster: strings.Repeat("c", 40), holder: holder{Owner: long, network: "blue/lan"},
			want: texts{
				"fairlead/" + strings.Repeat("c", 40) + "/9b2e6f4e-1a2b-4c3d-8e9f-000000000001/net-with-15-chr/",
				strings.Repeat("n", 63) + "/" + strings.Repeat("p", 191),
				"network=blue/lan node=node-1 name=" + strings.Repeat("p", 62) + "/net-with-15-chr",
			},
		},
		{name: "too long", cluster: "east", holder: holder{Owner: owner(), network: "blue/" + strings.Repeat("l", 250)}, err: "too long together"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := tc.write(tc.cluster)
			if tc.err != "" {
				if driver.Result(err) != "Invalid" || !strings.Contains(err.Error(), tc.err) {
					t.Fatalf("error %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			tc.want.deviceID += got.deviceID[len(got.deviceID)-24:] // the hash
			if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(texts{})); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			back, ok := read(tc.cluster, got)
			if diff := cmp.Diff(tc.holder, back, cmp.AllowUnexported(holder{})); !ok || diff != "" {
				t.Errorf("%v, -written +read:\n%s", ok, diff)
			}
		})
	}
}

// A subport has no device ID, so its name begins with the identity.
func TestTextsOfASubport(t *testing.T) {
	long := owner()
	long.Namespace, long.PodName, long.Interface = strings.Repeat("n", 63), strings.Repeat("p", 253), "net-with-15-chr"
	cluster := strings.Repeat("c", 40)
	for _, h := range []holder{
		{Owner: owner(), network: "default", isDefault: true, way: Trunk, parent: "3f1c2d4e-0000-4000-8000-0123456789ab"},
		{Owner: long, network: "n/l", way: Trunk, parent: "3f1c2d4e-0000-4000-8000-0123456789ab"},
		{Owner: owner(), network: "default", way: Macvlan, parent: "3f1c2d4e-0000-4000-8000-0123456789ab"},
	} {
		got, err := h.write(cluster)
		if len(h.PodName) > 200 { // the identity and both names do not fit
			if driver.Result(err) != "Invalid" {
				t.Errorf("%v: %+v", err, got)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		back, ok := read(cluster, got)
		if diff := cmp.Diff(h, back, cmp.AllowUnexported(holder{})); !ok || diff != "" {
			t.Errorf("%v, -written +read:\n%s", ok, diff)
		}
		if (got.deviceID == "") != (h.way == Trunk) || !strings.Contains(got.name, "blue/web-0") {
			t.Errorf("%+v", got)
		}
		changed := got
		changed.name, changed.deviceID = deviceID(cluster, h.Owner), ""
		if back, ok := read(cluster, changed); ok {
			t.Errorf("with half a name: %+v", back)
		}
	}
}

// A port is the cluster's only if all its texts are as the driver wrote them.
func TestForeignTexts(t *testing.T) {
	own, err := holder{Owner: owner(), network: "default", isDefault: true}.write("east")
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*texts){
		"of another cluster":      func(t *texts) { t.deviceID = strings.Replace(t.deviceID, "east", "west", 1) },
		"of a longer cluster":     func(t *texts) { t.deviceID = strings.Replace(t.deviceID, "east", "east/1", 1) },
		"of a machine":            func(t *texts) { t.deviceID = "9b2e6f4e-1a2b-4c3d-8e9f-000000000001" },
		"of another interface":    func(t *texts) { t.deviceID = strings.Replace(t.deviceID, "eth0", "net1", 1) },
		"with another name":       func(t *texts) { t.name = "blue/web-1/eth0" },
		"without a name":          func(t *texts) { t.name = "" },
		"with another text":       func(t *texts) { t.description = "mine" },
		"with a field in its UID": func(t *texts) { t.deviceID += "/x" },
	} {
		foreign := own
		change(&foreign)
		if h, ok := read("east", foreign); ok {
			t.Errorf("%s: read as %+v", name, h)
		}
	}
}

// Owners that differ in any part of their identity have different device IDs, whatever a
// tenant names her pods.
func TestDeviceIDIsAnIdentity(t *testing.T) {
	seen := map[string]int{}
	for n, change := range []func(*driver.Owner){
		func(*driver.Owner) {},
		func(o *driver.Owner) { o.PodUID = "9b2e6f4e-1a2b-4c3d-8e9f-000000000002" },
		func(o *driver.Owner) { o.Namespace = "red" },
		func(o *driver.Owner) { o.PodName = "web-1" },
		func(o *driver.Owner) { o.Interface = "net1" },
	} {
		o := owner()
		change(&o)
		id := deviceID("east", o)
		if other, twice := seen[id]; twice {
			t.Errorf("owners %d and %d both have %s", other, n, id)
		}
		seen[id] = n
	}
	moved := owner()
	moved.NodeName = "node-2"
	if deviceID("east", moved) != deviceID("east", owner()) {
		t.Error("the node is part of the identity")
	}
}

func FuzzRead(f *testing.F) {
	f.Add("fairlead/east/9b2e6f4e/eth0/8dc9", "blue/web-0/eth0", "network=default node=node-1 default=true")
	f.Add("", "fairlead/east/9b2e6f4e/eth0/8dc9/blue/web-0", "network=default node=node-1 way=trunk parent=3f1c")
	f.Fuzz(func(t *testing.T, id, name, description string) {
		h, ok := read("east", texts{id, name, description})
		if !ok {
			return
		}
		if got, err := h.write("east"); err != nil || got != (texts{id, name, description}) {
			t.Errorf("%+v is written as %+v, %v", h, got, err)
		}
		if h.PodUID == "" && h.Interface == "" {
			t.Errorf("no identity in %q", id)
		}
	})
}
