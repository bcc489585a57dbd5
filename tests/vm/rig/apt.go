package rig

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sort"
	"strings"
)

// ErrNoMirror says that this machine has no apt sources that name a Debian mirror.
var ErrNoMirror = errors.New("no Debian mirror in this machine's apt sources")

// apt is a private apt installation: its own sources, package lists and archive directory below
// dir, and an empty package database, so that all dependencies are resolved and nothing on the
// machine changes.
type apt struct {
	dir  string
	opts []string
}

// archive is one Debian archive of the machine's own sources: its URL, and the keyring that signs
// it.
type archive struct{ main, security string }

// keyring holds the archive keys of all supported Debian releases (package debian-archive-keyring).
const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// machineArchive reads the mirror from the machine's apt configuration.
func machineArchive(ctx context.Context) (archive, error) {
	out, err := exec.CommandContext(ctx, "apt-get", "indextargets", "--format",
		"$(REPO_URI) $(RELEASE)", "Identifier: Packages").Output()
	if err != nil {
		err = fmt.Errorf("%w: apt-get indextargets: %w", ErrNoMirror, err)
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, lastLines(exit.Stderr, 1))
		}
		return archive{}, err
	}
	var a archive
	for _, line := range strings.Split(string(out), "\n") {
		uri, release, ok := strings.Cut(line, " ")
		switch {
		case !ok:
		case strings.HasSuffix(release, "-security"):
			a.security = uri
		case a.main == "":
			a.main = uri
		}
	}
	if a.main == "" {
		return archive{}, ErrNoMirror
	}
	return a, nil
}

// newApt prepares a private apt below dir for the named suites and fetches their package lists.
// More are additional options.
func newApt(ctx context.Context, dir string, a archive, suites, more []string) (*apt, error) {
	for _, d := range []string{"state/lists/partial", "cache/archives/partial", "log"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return nil, err
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "status"), nil, 0o644); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "sources.list"),
		sourcesList(a, suites), 0o644); err != nil {
		return nil, err
	}
	p := &apt{dir: dir, opts: append(privateOptions(dir), more...)}
	if _, err := p.run(ctx, "apt-get", "update", "-q"); err != nil {
		return nil, err
	}
	return p, nil
}

// privateOptions makes apt read and write only directories below dir.
func privateOptions(dir string) []string {
	var opts []string
	for _, o := range []string{
		"Dir::Etc::sourcelist=" + filepath.Join(dir, "sources.list"),
		"Dir::Etc::sourceparts=/dev/null",
		"Dir::Etc::preferencesparts=/dev/null",
		"Dir::State=" + filepath.Join(dir, "state"),
		"Dir::State::status=" + filepath.Join(dir, "status"),
		"Dir::Cache=" + filepath.Join(dir, "cache"),
		"Dir::Log=" + filepath.Join(dir, "log"),
		"Acquire::Languages=none",
		"Debug::NoLocking=1",
		"APT::Sandbox::User=",
	} {
		opts = append(opts, "-o", o)
	}
	return opts
}

// sourcesOf before the name of a suite stands for its source packages.
const sourcesOf = "deb-src "

// sourcesList is the one-line-style source list of the suites. Signatures are checked against the
// Debian archive keyring where the machine has it; a machine without it uses the keys its own apt
// trusts.
func sourcesList(a archive, suites []string) []byte {
	var b bytes.Buffer
	signed := ""
	if _, err := os.Stat(keyring); err == nil {
		signed = "[signed-by=" + keyring + "] "
	}
	for _, s := range suites {
		kind, uri := "deb", a.main
		if name, ok := strings.CutPrefix(s, sourcesOf); ok {
			kind, s = "deb-src", name
		}
		if strings.HasSuffix(s, "-security") {
			if uri = a.security; uri == "" {
				continue
			}
		}
		fmt.Fprintf(&b, "%s %s%s %s main\n", kind, signed, uri, s)
	}
	return b.Bytes()
}

// run runs an apt program with the private options and returns its standard output.
func (p *apt) run(ctx context.Context, prog string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, prog, append(append([]string{}, p.opts...), args...)...)
	cmd.Dir = filepath.Join(p.dir, "cache", "archives")
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%s %s: %w: %s", prog, strings.Join(args, " "), err,
			lastLines(stderr.Bytes(), 3))
	}
	return stdout.Bytes(), nil
}

// closure downloads packages with everything they depend on and returns the .deb files.
func (p *apt) closure(ctx context.Context, target string, pkgs ...string) ([]string, error) {
	args := []string{"install", "-q", "-y", "--no-install-recommends", "--download-only"}
	if target != "" {
		args = append(args, "-t", target)
	}
	before, err := p.debs()
	if err != nil {
		return nil, err
	}
	if len(before) > 0 {
		return nil, fmt.Errorf("archive directory of %s is not empty", p.dir)
	}
	if _, err := p.run(ctx, "apt-get", append(args, pkgs...)...); err != nil {
		return nil, err
	}
	return p.debs()
}

// one downloads a single package without its dependencies and returns the .deb file.
func (p *apt) one(ctx context.Context, pkg string) (string, error) {
	if _, err := p.run(ctx, "apt-get", "download", "-q", pkg); err != nil {
		return "", err
	}
	m, err := filepath.Glob(filepath.Join(p.dir, "cache", "archives", pkg+"_*.deb"))
	if err != nil || len(m) == 0 {
		return "", fmt.Errorf("package %s was not downloaded", pkg)
	}
	return m[len(m)-1], nil
}

// source downloads and unpacks a source package, with Debian's patches applied, and returns its
// directory.
func (p *apt) source(ctx context.Context, pkg string) (string, error) {
	if _, err := p.run(ctx, "apt-get", "source", "-q", pkg); err != nil {
		return "", err
	}
	m, err := filepath.Glob(filepath.Join(p.dir, "cache", "archives", pkg+"-*", "configure"))
	if err != nil || len(m) != 1 {
		return "", fmt.Errorf("source package %s was not unpacked", pkg)
	}
	return filepath.Dir(m[0]), nil
}

func (p *apt) debs() ([]string, error) {
	return filepath.Glob(filepath.Join(p.dir, "cache", "archives", "*.deb"))
}

// newest returns the package with the highest version number in its name among those that match
// pattern.
func (p *apt) newest(ctx context.Context, pattern string) (string, error) {
	out, err := p.run(ctx, "apt-cache", "pkgnames", literalPrefix(pattern))
	if err != nil {
		return "", err
	}
	re := regexp.MustCompile("^" + pattern + "$")
	var names []string
	for _, n := range strings.Fields(string(out)) {
		if re.MatchString(n) {
			names = append(names, n)
		}
	}
	if len(names) == 0 {
		return "", fmt.Errorf("no package is named like %s", pattern)
	}
	sort.Slice(names, func(i, j int) bool { return naturalLess(names[i], names[j]) })
	return names[len(names)-1], nil
}
