package need

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// debianPackage has the package of each program whose name differs.
var debianPackage = map[string]string{
	"ip": "iproute2", "tc": "iproute2", "ss": "iproute2",
	"ping": "iputils-ping", "dig": "bind9-dnsutils",
	"cc": "gcc", "ethtool": "ethtool", "qemu-system-x86_64": "qemu-system-x86",
	"h2load": "nghttp2-client", "kdig": "knot-dnsutils", "ssh": "openssh-client",
	"setcap": "libcap2-bin", "bird": "bird2", "birdc": "bird2",
	"zebra": "frr", "bgpd": "frr", "vtysh": "frr",
}

// Tool returns the path of a program.
func Tool(t testing.TB, name string) string {
	t.Helper()
	path, err := lookPath(name)
	That(t, "tool", err)
	return path
}

// Compiler returns the path of a C compiler: $CC, cc, gcc or clang.
func Compiler(t testing.TB) string {
	t.Helper()
	path, err := compiler()
	That(t, "compiler", err)
	return path
}

// Header returns the path of a C compiler that finds all these headers, for
// example "infiniband/mlx5dv.h" (Debian package libibverbs-dev).
func Header(t testing.TB, names ...string) string {
	t.Helper()
	cc := Compiler(t)
	That(t, "header", includes(cc, names))
	return cc
}

// lookPath also searches directories that a user's PATH often lacks.
func lookPath(name string) (string, error) {
	path, err := exec.LookPath(name)
	for _, dir := range []string{"/usr/sbin", "/sbin", "/usr/lib/frr"} {
		if err == nil {
			break
		}
		path, err = exec.LookPath(filepath.Join(dir, name))
	}
	if err != nil {
		pkg := name
		if p, ok := debianPackage[name]; ok {
			pkg = p
		}
		return "", fmt.Errorf("no program %s (Debian package %s)", name, pkg)
	}
	return path, nil
}

func compiler() (string, error) {
	for _, name := range []string{os.Getenv("CC"), "cc", "gcc", "clang"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("no C compiler (Debian package gcc)")
}

func includes(cc string, names []string) error {
	var src strings.Builder
	for _, n := range names {
		fmt.Fprintf(&src, "#include <%s>\n", n)
	}
	cmd := exec.Command(cc, "-x", "c", "-fsyntax-only", "-")
	cmd.Stdin = strings.NewReader(src.String())
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf(
			"%s does not find %s (Debian packages linux-libc-dev, libibverbs-dev): %s",
			cc, strings.Join(names, ", "), firstLine(string(out)))
	}
	return nil
}

func firstLine(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	return s
}
