package cloud

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack"
	"github.com/gophercloud/gophercloud/v2/openstack/config/clouds"
	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/tokens"
)

// loginTime bounds a login that renews a token: other calls wait for it as well.
const loginTime = 30 * time.Second

// loginCall is the name of a login in errors.
const loginCall = "log in to OpenStack"

// login gets tokens with the credentials of a file.
type login struct {
	file, cloud string
	http        http.Client
}

// access is the content of the file.
type access struct {
	auth     gophercloud.AuthOptions
	endpoint gophercloud.EndpointOpts
	tls      *tls.Config
}

// read reads the file.
func (l *login) read() (access, error) {
	opts := []clouds.ParseOption{clouds.WithCloudName(l.cloud)}
	if l.file != "" {
		opts = append(opts, clouds.WithLocations(l.file))
	}
	auth, endpoint, config, err := clouds.Parse(opts...)
	if err != nil {
		return access{}, fmt.Errorf("read cloud %q of %s: %w", l.cloud, cmp.Or(l.file, "clouds.yaml"), err)
	}
	return access{auth, endpoint, config}, nil
}

// authenticate returns a client with a token. Errors: ErrForbidden, ErrUnavailable. No other
// error: a call that needed a new token would take it for an answer about its object.
func (l *login) authenticate(ctx context.Context, a access) (*gophercloud.ProviderClient, error) {
	client, err := openstack.NewClient(a.auth.IdentityEndpoint)
	if err != nil {
		err = fmt.Errorf("auth_url %q of cloud %q in %s: %w", a.auth.IdentityEndpoint, l.cloud, l.file, err)
		return nil, &failure{call: loginCall, kind: ErrUnavailable, cause: err}
	}
	client.HTTPClient = l.http
	if err := openstack.Authenticate(ctx, client, a.auth); err != nil {
		return nil, as(ErrUnavailable, translate(loginCall, err),
			ErrNotFound, ErrInvalid, ErrQuota, ErrFull, ErrTaken, ErrInUse, ErrChanged, ErrLimit)
	}
	return client, nil
}

// renew gives the client a new token, with the file read again. All calls wait for one
// login, so that it does not end with the call that began it.
func (l *login) renew(ctx context.Context, client *gophercloud.ProviderClient) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), loginTime)
	defer cancel()
	a, err := l.read()
	if err != nil {
		// A Secret may be in the middle of its update: the next call reads the file again.
		return &failure{call: loginCall, kind: ErrUnavailable, cause: err}
	}
	fresh, err := l.authenticate(ctx, a)
	if err != nil {
		return err
	}
	client.CopyTokenFrom(fresh)
	return nil
}

// projectOf returns the project of a client's token. Errors: ErrInvalid, ErrUnavailable.
func projectOf(client *gophercloud.ProviderClient) (string, error) {
	token, ok := client.GetAuthResult().(tokens.CreateResult)
	if !ok {
		return "", fmt.Errorf("%w: the cloud has no Identity API of version 3", ErrInvalid)
	}
	project, err := token.ExtractProject()
	if err != nil {
		return "", translate("read the project of a token", err)
	}
	if project == nil {
		return "", fmt.Errorf("%w: the credentials belong to no project: name one in clouds.yaml, or use an application credential", ErrInvalid)
	}
	return project.ID, nil
}

// warnOnce logs that the cloud's certificate is not verified.
func warnOnce(ctx context.Context, cfg Config, a access) {
	if a.tls.InsecureSkipVerify {
		logr.FromContextOrDiscard(ctx).Info("the certificate of the cloud is not verified: anyone on the way can read the credentials; set cacert instead of \"verify: false\"",
			"cloud", cfg.Cloud, "file", cfg.File)
	}
}
