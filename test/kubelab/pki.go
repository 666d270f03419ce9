package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// validity is the validity of every certificate; no temporary control plane runs that
// long.
const validity = 365 * 24 * time.Hour

// pki is the certificate authority of one control plane. It exists only in the memory of
// the process.
type pki struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

// identity is a user as the API server sees it in a client certificate.
type identity struct {
	name  string // user name, the certificate's common name
	group string // group, the certificate's organization; may be empty
}

func newPKI() (*pki, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("certificate authority: %w", err)
	}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "kubelab"},
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	ca := &pki{key: key, cert: template}
	der, err := ca.sign(template, key)
	if err != nil {
		return nil, err
	}
	if ca.cert, err = x509.ParseCertificate(der); err != nil {
		return nil, fmt.Errorf("certificate authority: %w", err)
	}
	return ca, nil
}

// sign completes a certificate and signs it with the authority's key. The result is in DER.
func (ca *pki) sign(template *x509.Certificate, key *ecdsa.PrivateKey) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, fmt.Errorf("certificate serial: %w", err)
	}
	now := time.Now()
	template.SerialNumber = serial
	template.NotBefore, template.NotAfter = now.Add(-time.Hour), now.Add(validity) // an hour for clocks that differ
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, &key.PublicKey, ca.key)
	if err != nil {
		return nil, fmt.Errorf("certificate %q: %w", template.Subject.CommonName, err)
	}
	return der, nil
}

// issue makes a key and a certificate for it, both in PEM.
func (ca *pki) issue(template *x509.Certificate) (certPEM, keyPEM []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("key of %q: %w", template.Subject.CommonName, err)
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	der, err := ca.sign(template, key)
	if err != nil {
		return nil, nil, err
	}
	keyPEM, err = encodeKey(key)
	return encodeCert(der), keyPEM, err
}

// writeServerFiles writes the files of the components: the authority's certificate, the
// API server's certificate and key, and the key that signs service account tokens.
func (ca *pki) writeServerFiles(dir string, bind netip.Addr) error {
	certPEM, keyPEM, err := ca.issue(&x509.Certificate{
		Subject:     pkix.Name{CommonName: "kube-apiserver"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, // a client of kubelets
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback, bind.AsSlice(), kubernetesService(bind).AsSlice()},
		DNSNames:    []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"},
	})
	if err != nil {
		return err
	}
	saKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("service account key: %w", err)
	}
	saPEM, err := encodeKey(saKey)
	if err != nil {
		return err
	}
	files := map[string][]byte{
		"ca.crt":        encodeCert(ca.cert.Raw),
		"apiserver.crt": certPEM,
		"apiserver.key": keyPEM,
		"sa.key":        saPEM,
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			return fmt.Errorf("certificates: %w", err)
		}
	}
	return nil
}

// writeKubeconfig writes a self-contained kubeconfig, which can be copied elsewhere.
func (ca *pki) writeKubeconfig(path, server string, user identity) error {
	subject := pkix.Name{CommonName: user.name}
	if user.group != "" {
		subject.Organization = []string{user.group}
	}
	certPEM, keyPEM, err := ca.issue(&x509.Certificate{
		Subject:     subject,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return err
	}
	const name = "kubelab"
	cfg := clientcmdapi.NewConfig()
	cfg.Clusters[name] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: encodeCert(ca.cert.Raw)}
	cfg.AuthInfos[name] = &clientcmdapi.AuthInfo{ClientCertificateData: certPEM, ClientKeyData: keyPEM}
	cfg.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	cfg.CurrentContext = name
	return clientcmd.WriteToFile(*cfg, path)
}

func encodeCert(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encoding a key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}
