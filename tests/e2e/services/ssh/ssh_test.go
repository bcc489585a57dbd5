// Package ssh runs an SSH server on the stack, with OpenSSH as its client.
package ssh

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/gliderlabs/ssh"
	gossh "golang.org/x/crypto/ssh"

	"github.com/rdma-netstack/rdma-netstack/tests/e2e/services/world"
)

func TestOpenSSH(t *testing.T) {
	world.Tool(t, "ssh", `OpenSSH_(\S+?),? `, "-V")
	world.Module(t, "github.com/gliderlabs/ssh")
	world.Module(t, "golang.org/x/crypto")
	world.Each(t, func(t *testing.T, w *world.World) {
		identity, known := keys(t, w)
		options := []string{"-F", "none", "-i", identity, "-o", "IdentitiesOnly=yes", "-o",
			"UserKnownHostsFile=" + known,
			"-o", "StrictHostKeyChecking=yes", "-o", "BatchMode=yes", "-o", "ConnectTimeout=120"}
		run := func(t *testing.T, stdin io.Reader, args ...string) string {
			return w.Feed(t, stdin, "ssh",
				append(options, append([]string{"somebody@" + world.Server4}, args...)...)...)
		}
		t.Run("command", func(t *testing.T) {
			if got := run(t, nil, "hello"); got != "hello, somebody from 192.0.2.1\n" {
				t.Errorf("printed %q", got)
			}
		})
		t.Run("data each way", func(t *testing.T) {
			data := make([]byte, 4<<20)
			if w.Wire != "" {
				data = data[:256<<10]
			}
			rand.Read(data)
			if got := run(t, bytes.NewReader(data),
				"echo"); sha256.Sum256([]byte(got)) != sha256.Sum256(data) {
				t.Errorf("%d bytes of %d, or others", len(got), len(data))
			}
		})
		t.Run("exit code", func(t *testing.T) {
			_, err := w.Try(t, nil, "ssh", append(options, "somebody@"+world.Server4, "fail")...)
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != 7 {
				t.Errorf("%v, want exit code 7", err)
			}
		})
		t.Run("shared connection", func(t *testing.T) {
			control := filepath.Join(t.TempDir(), "c")
			for range 5 {
				if got := run(t, nil, "-o", "ControlMaster=auto", "-o", "ControlPath="+control,
					"hello"); got != "hello, somebody from 192.0.2.1\n" {
					t.Errorf("printed %q", got)
				}
			}
		})
	})
}

// keys starts the server and returns the files that a client needs.
func keys(t *testing.T, w *world.World) (identity, known string) {
	t.Helper()
	hostKey, _ := newKey(t)
	userKey, userPEM := newKey(t)
	dir := t.TempDir()
	identity, known = filepath.Join(dir, "id"), filepath.Join(dir, "known_hosts")
	write(t, identity, userPEM)
	write(t, known, append([]byte(world.Server4+" "),
		gossh.MarshalAuthorizedKey(hostKey.PublicKey())...))
	srv := &ssh.Server{
		Handler: session,
		PublicKeyHandler: func(_ ssh.Context,
			key ssh.PublicKey) bool {
			return ssh.KeysEqual(key, userKey.PublicKey())
		},
		IdleTimeout: time.Minute,
	}
	srv.AddHostKey(hostKey)
	ln := w.Listen(t, 22)
	go srv.Serve(ln)
	t.Cleanup(func() { srv.Close() })
	return identity, known
}

func session(s ssh.Session) {
	switch s.RawCommand() {
	case "hello":
		host, _, _ := net.SplitHostPort(s.RemoteAddr().String())
		fmt.Fprintf(s, "hello, %s from %s\n", s.User(), host)
	case "echo":
		io.Copy(s, s)
	case "fail":
		s.Exit(7)
	}
}

func newKey(t *testing.T) (gossh.Signer, []byte) {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	block, err := gossh.MarshalPrivateKey(key, "")
	if err != nil {
		t.Fatal(err)
	}
	signer, err := gossh.NewSignerFromKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return signer, pem.EncodeToMemory(block)
}

func write(t *testing.T, name string, data []byte) {
	t.Helper()
	if err := os.WriteFile(name, data, 0o600); err != nil {
		t.Fatal(err)
	}
}
