package hostdevice_test

import (
	"errors"
	"testing"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/internal/netdev/plug/hostdevice"
	"fairlead.dev/fairlead/test/nettest"
	"fairlead.dev/fairlead/test/plugtest"
)

func TestHostDevice(t *testing.T) {
	i := plugtest.Further(v1alpha1.Binding{HostDevice: &v1alpha1.HostDeviceBinding{Name: "eth5"}})
	plugtest.Run(t, plugtest.Case{
		New: hostdevice.New, Interface: i, StandIns: []string{"eth5", "xeth5"},
		Host: func(tb testing.TB, s *link.Sockets) {
			tb.Helper()
			nettest.AddDevice(tb, s, "eth5")
		},
		Invalid: map[string]plug.Interface{
			"binding must be hostDevice":    plugtest.Changed(i, func(i *plug.Interface) { i.Binding = v1alpha1.Binding{} }),
			"bandwidth of net1 must not be": plugtest.Changed(i, func(i *plug.Interface) { i.Bandwidth = &plug.Bandwidth{} }),
			"must have one of name, mac, ke": plugtest.Changed(i, func(i *plug.Interface) {
				i.Binding.HostDevice = &v1alpha1.HostDeviceBinding{Name: "eth5", MAC: "02:00:00:00:00:01"}
			}),
		},
		// The interface is in the pod, without its last name.
		Leave: func(tb testing.TB, s *link.Sockets, ns *link.Namespace, i plug.Interface) {
			tb.Helper()
			nettest.Must(tb, hostdevice.New(s).Make(tb.Context(), ns, i))
			h := nettest.OpenHandle(tb, ns)
			dev := nettest.LinkNamed(tb, ns, i.Name)
			nettest.Must(tb, errors.Join(h.LinkSetDown(dev), h.LinkSetName(dev, "eth5")))
		},
	})
}
