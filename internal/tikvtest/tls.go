package tikvtest

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

// Certificates are those of a cluster whose servers and clients prove themselves to
// each other.
type Certificates struct {
	// Server is for Options.TLS.
	Server *tls.Config
	// CA, Cert and Key are the files of a client.
	CA, Cert, Key string
}

// NewCertificates makes an authority of its own, and in dir the files of a client.
func NewCertificates(t testing.TB, dir string) Certificates {
	t.Helper()
	ca := certificate(t, "ca", nil)
	server := certificate(t, "server", ca)
	client := certificate(t, "client", ca)
	pool := x509.NewCertPool()
	pool.AddCert(ca.Leaf)
	out := Certificates{
		Server: &tls.Config{
			MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{*server},
			ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert,
			NextProtos: []string{"h2"},
		},
		CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, "client.pem"), Key: filepath.Join(dir, "client.key"),
	}
	key, err := x509.MarshalPKCS8PrivateKey(client.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{
		out.CA:   {Type: "CERTIFICATE", Bytes: ca.Certificate[0]},
		out.Cert: {Type: "CERTIFICATE", Bytes: client.Certificate[0]},
		out.Key:  {Type: "PRIVATE KEY", Bytes: key},
	} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// certificate is signed by parent, or by itself.
func certificate(t testing.TB, name string, parent *tls.Certificate) *tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, BasicConstraintsValid: true, IsCA: parent == nil,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	signer, by := any(key), template
	if parent != nil {
		signer, by = parent.PrivateKey, parent.Leaf
	}
	der, err := x509.CreateCertificate(rand.Reader, template, by, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}
