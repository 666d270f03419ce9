package lab

import (
	"context"
	"fmt"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack"
	"github.com/gophercloud/gophercloud/v2/openstack/config"
	"github.com/gophercloud/gophercloud/v2/openstack/config/clouds"
)

// Network returns a client of Neutron with the credentials of a cloud in clouds.yaml. In a
// laboratory without Keystone it has none, and is an administrator.
func (l *Lab) Network(ctx context.Context, cloud string) (*gophercloud.ServiceClient, error) {
	if l.KeystoneURL == "" {
		return &gophercloud.ServiceClient{
			ProviderClient: &gophercloud.ProviderClient{},
			Endpoint:       l.NeutronURL + "/",
			ResourceBase:   l.NeutronURL + "/v2.0/",
			Type:           "network",
		}, nil
	}
	auth, endpoint, tls, err := clouds.Parse(clouds.WithLocations(l.Clouds), clouds.WithCloudName(cloud))
	if err != nil {
		return nil, fmt.Errorf("read cloud %s of %s: %w", cloud, l.Clouds, err)
	}
	provider, err := config.NewProviderClient(ctx, auth, config.WithTLSConfig(tls))
	if err != nil {
		return nil, fmt.Errorf("log in to cloud %s: %w", cloud, err)
	}
	client, err := openstack.NewNetworkV2(provider, endpoint)
	if err != nil {
		return nil, fmt.Errorf("find Neutron in cloud %s: %w", cloud, err)
	}
	return client, nil
}
