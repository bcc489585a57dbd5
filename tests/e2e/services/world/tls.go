package world

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// ServerName is the name in the certificate, beside the server's addresses.
const ServerName = "server.test"

// Identity is a self-signed certificate.
type Identity struct {
	TLS       tls.Certificate
	Pool      *x509.CertPool // the trusted certificates
	Cert, Key string         // names of PEM files
}

// NewIdentity makes an identity that lasts as long as the test.
func NewIdentity(t testing.TB) *Identity {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: ServerName},
		DNSNames:  []string{ServerName},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IsCA:        true, BasicConstraintsValid: true,
	}
	for _, a := range []string{Server4, Server6, Client4, Client6} {
		template.IPAddresses = append(template.IPAddresses, net.ParseIP(a))
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	must(t, err)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	must(t, err)
	dir := t.TempDir()
	id := &Identity{Pool: x509.NewCertPool(), Cert: filepath.Join(dir, "cert.pem"),
		Key: filepath.Join(dir, "key.pem")}
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
	must(t, os.WriteFile(id.Cert, certPEM, 0o644))
	must(t, os.WriteFile(id.Key, keyPEM, 0o600))
	id.TLS, err = tls.X509KeyPair(certPEM, keyPEM)
	must(t, err)
	id.Pool.AppendCertsFromPEM(certPEM)
	return id
}

// Server is a server's configuration; protocols are for ALPN.
func (id *Identity) Server(protocols ...string) *tls.Config {
	return &tls.Config{Certificates: []tls.Certificate{id.TLS}, NextProtos: protocols}
}

// Client is the configuration of a client that trusts this identity only.
func (id *Identity) Client(protocols ...string) *tls.Config {
	return &tls.Config{RootCAs: id.Pool, ServerName: ServerName, NextProtos: protocols}
}
