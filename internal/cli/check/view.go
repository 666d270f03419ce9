package check

// Result is the result of a test.
type Result string

// The results.
const (
	Passed   Result = "Passed"
	Failed   Result = "Failed"
	NotTried Result = "NotTried"
)

// Test is the name of a test.
type Test string

// The tests, in the order of the table.
const (
	testPod      Test = "pod"       // the pod of the check runs on the node
	testExec     Test = "exec"      // probes can be executed in it
	testSame     Test = "same-node" // TCP to a pod of the same node
	testTCP      Test = "tcp"
	testUDP      Test = "udp"
	testSize     Test = "size"      // one packet of the MTU
	testFromNode Test = "from-node" // TCP from the node itself to a pod
	testHostPort Test = "host-port"
	testService  Test = "service" // TCP to the address of a Service
	testHairpin  Test = "hairpin" // the same, from the pod behind the Service
	testNodePort Test = "node-port"
	testDNS      Test = "dns"
	testEgress   Test = "egress"
	testPolicy   Test = "policy"         // a NetworkPolicy denies a connection
	testSource   Test = "source-address" // no packet arrives with the address of another pod
	testCleanUp  Test = "clean-up"
)

// order is the order of the tests in the table.
var order = []Test{
	testPod, testExec, testSame, testTCP, testUDP, testSize, testFromNode, testHostPort,
	testService, testHairpin, testNodePort, testDNS, testEgress, testPolicy, testSource, testCleanUp,
}

// Row is a test with its result.
type Row struct {
	Test Test `json:"test"`
	// Network is "default", or the namespace/name of a further network; empty for a test that
	// is of no network.
	Network string `json:"network,omitempty"`
	// Family is IPv4 or IPv6, or empty.
	Family string `json:"family,omitempty"`
	From   string `json:"from,omitempty"` // the node of the asking pod
	// To is the node of the answering pod, or the name or address for DNS and egress.
	To string `json:"to,omitempty"`
	// Via is the node whose address was asked, for ports of nodes.
	Via    string `json:"via,omitempty"`
	Result Result `json:"result"`
	Detail string `json:"detail,omitempty"`
	// Source is the address that the answering pod saw, if it is not that of the asking pod.
	Source string `json:"source,omitempty"`
	// CheckedBy checks the source addresses of packets, for the test source-address.
	CheckedBy checker `json:"checkedBy,omitempty"`
}

// Finding explains rows that failed.
type Finding struct {
	Problem string `json:"problem"`
	// Look is where to look.
	Look string `json:"look"`
}

// view is the output of `check -o json`.
type view struct {
	// OK is true if no test failed.
	OK bool `json:"ok"`
	// Nodes of the check, and the number of nodes with Fairlead.
	Nodes    []string  `json:"nodes"`
	Served   int       `json:"served"`
	Rows     []Row     `json:"rows"`
	Findings []Finding `json:"findings"`
}
