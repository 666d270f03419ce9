package namespace

import (
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
)

// uidPart is the number of characters of a UID in the name of a record.
const uidPart = 8

// recordName returns the name of the NamespaceNetwork of a namespace. A later namespace of
// the same name has another one, and waits for nothing of its predecessor.
func recordName(namespace string, uid types.UID) string {
	return namespace + "-" + string(uid)[:min(len(uid), uidPart)]
}

// cloudName returns the name of the network of a namespace in the cloud:
// "fairlead/CLUSTER/NAMESPACE/UID".
func cloudName(cluster, namespace string, uid types.UID) string {
	return strings.Join([]string{"fairlead", cluster, namespace, string(uid)}, "/")
}

// readName is the reverse of cloudName. ok is false if the name is not that of a network of
// a namespace of the cluster.
func readName(cluster, name string) (namespace string, uid types.UID, ok bool) {
	parts := strings.Split(name, "/")
	if len(parts) != 4 || parts[0] != "fairlead" || parts[1] != cluster {
		return "", "", false
	}
	namespace, uid = parts[2], types.UID(parts[3])
	ok = len(validation.IsDNS1123Label(namespace)) == 0 && len(validation.IsDNS1123Label(string(uid))) == 0 && len(uid) <= 36
	return namespace, uid, ok
}

// subnetName returns the name of the nth subnet of a family: "NETWORK/ipv4-0".
func subnetName(network string, ipv6 bool, n int) string {
	return fmt.Sprintf("%s/%s-%d", network, family(ipv6), n)
}

// isSubnetName reports whether a name is that of a subnet of a network.
func isSubnetName(network, name string) bool {
	rest, ok := strings.CutPrefix(name, network+"/ipv")
	if !ok || len(rest) < 3 || rest[0] != '4' && rest[0] != '6' || rest[1] != '-' {
		return false
	}
	n, err := strconv.Atoi(rest[2:])
	return err == nil && n >= 0 && strconv.Itoa(n) == rest[2:]
}

func family(ipv6 bool) string {
	if ipv6 {
		return "ipv6"
	}
	return "ipv4"
}
