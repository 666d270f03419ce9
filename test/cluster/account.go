package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/test/kubeclient"
)

// The ServiceAccounts of deploy/rights.
const (
	ControllerAccount = "fairlead-controller"
	NodeAccount       = "fairlead-node"

	// AccountNamespace is their namespace.
	AccountNamespace = "fairlead-system"
)

// tokenSeconds is the life of a token, longer than any run.
const tokenSeconds = 24 * 3600

// Account returns the path of a kubeconfig with the credentials of a ServiceAccount of
// Fairlead, as in an installation: with the rights of deploy/rights, which it installs,
// and no others. If node is set, the token is bound to a pod on that node, like the token
// of a daemon. The Node has to exist; otherwise Kubernetes soon removes the pod.
func (c *Cluster) Account(name, node string) string {
	c.tb.Helper()
	if err := c.rights(); err != nil {
		c.tb.Fatal(err)
	}
	var bound *authenticationv1.BoundObjectReference
	if node != "" {
		pod := c.holder(name, node)
		bound = &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}
	}
	path := filepath.Join(c.tb.TempDir(), "kubeconfig")
	if err := WriteAccount(c.tb.Context(), c.Client, c.REST, path, name, bound); err != nil {
		c.tb.Fatal(err)
	}
	c.awaitRights(path)
	return path
}

// AsController returns the configuration for requests in the name of the controller, with an
// administrator's rights: the policy of deploy/rights refuses the writes of everybody else.
func AsController(cfg *rest.Config) *rest.Config {
	cfg = rest.CopyConfig(cfg)
	cfg.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:" + AccountNamespace + ":" + ControllerAccount, Groups: []string{"system:masters", "system:authenticated"},
	}
	return cfg
}

// withoutPolicy is a kustomization of deploy/rights without the policy that only the
// controller writes its objects: many tests write them in its place.
const withoutPolicy = `resources: [%s]
patches:
- patch: |
    $patch: delete
    apiVersion: admissionregistration.k8s.io/v1
    kind: ValidatingAdmissionPolicyBinding
    metadata: {name: fairlead-controller-only}
`

// installRights applies deploy/rights of this build, but for that policy.
func installRights(kubeconfig string) error {
	rights, err := Deploy("rights")
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "fairlead-rights-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // it is in the temporary directory
	relative, err := filepath.Rel(dir, rights)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), fmt.Appendf(nil, withoutPolicy, relative), 0o600); err != nil {
		return err
	}
	_, err = kubectl(kubeconfig, "apply", "--server-side", "--force-conflicts", "-k", dir)
	return err
}

// holder creates the pod to which a token is bound. It uses its node's network, so it
// needs none from Fairlead.
func (c *Cluster) holder(account, node string) *corev1.Pod {
	c.tb.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: AccountNamespace, GenerateName: account + "-"},
		Spec: corev1.PodSpec{
			NodeName: node, ServiceAccountName: account, AutomountServiceAccountToken: new(false), HostNetwork: true,
			TerminationGracePeriodSeconds: new(int64(0)),
			Containers:                    []corev1.Container{{Name: "main", Image: "none"}},
		},
	}
	if err := c.Client.Create(c.tb.Context(), pod); err != nil {
		c.tb.Fatalf("creating a pod of account %s: %v", account, err)
	}
	c.cleanup(func(ctx context.Context) {
		if err := c.Client.Delete(ctx, pod); client.IgnoreNotFound(err) != nil {
			c.tb.Errorf("removing pod %s: %v", pod.Name, err)
		}
	})
	return pod
}

// WriteAccount writes a kubeconfig with a token of an existing ServiceAccount of
// Fairlead. If bound is a pod on a node, the token is bound to the pod and so to the
// node. api and cfg are the administrator's.
func WriteAccount(ctx context.Context, api client.Client, cfg *rest.Config, path, name string, bound *authenticationv1.BoundObjectReference) error {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: AccountNamespace, Name: name}}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: bound, ExpirationSeconds: new(int64(tokenSeconds))}}
	if err := api.SubResource("token").Create(ctx, account, request); err != nil {
		return fmt.Errorf("token of the ServiceAccount %s: %w", name, err)
	}
	file := clientcmdapi.NewConfig()
	file.Clusters[name] = &clientcmdapi.Cluster{Server: cfg.Host, CertificateAuthorityData: cfg.CAData, CertificateAuthority: cfg.CAFile}
	file.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: request.Status.Token}
	file.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	file.CurrentContext = name
	if err := clientcmd.WriteToFile(*file, path); err != nil {
		return fmt.Errorf("kubeconfig of %s: %w", name, err)
	}
	return nil
}

// awaitRights waits until the API server, which reads roles by a watch, knows the new
// roles.
func (c *Cluster) awaitRights(kubeconfig string) {
	c.tb.Helper()
	cfg, err := kubeclient.Config(kubeconfig)
	if err != nil {
		c.tb.Fatal(err)
	}
	api, err := authorizationclient.NewForConfig(cfg)
	if err != nil {
		c.tb.Fatal(err)
	}
	c.Eventually(c.tb, "the rights of an account", func(ctx context.Context) error {
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
			ResourceAttributes: &authorizationv1.ResourceAttributes{Group: "events.k8s.io", Resource: "events", Verb: "create"},
		}}
		answer, err := api.SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		if !answer.Status.Allowed {
			return errors.New("it may not write events yet: " + answer.Status.Reason)
		}
		return nil
	})
}
