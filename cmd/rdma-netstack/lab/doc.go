// Package lab makes small private networks on one Linux machine and removes them again.
//
// A Net is an anonymous network namespace. It has no name in /run/netns: it lives as long as a
// descriptor of this process, so nothing remains however the process ends, kill -9 included. Other
// processes can enter it while it lives, through the path that Net.Path gives.
//
//	outside, err := lab.New("outside")
//	err = outside.Do(func() error { return lab.Up("tap0", lab.Setup{Addresses: addrs}) })
//	// a kernel socket of that namespace
//	conn, err := outside.DialContext(ctx, "tcp", "192.0.2.10:80")
//	// a process in that namespace, which is killed when this one ends
//	err = outside.Start(exec.Command("ping", "192.0.2.10"))
//	outside.Close()
//
// Making a namespace needs CAP_SYS_ADMIN. A process without it can run itself again as root of a
// user namespace of its own, see RunAsNamespaceRoot.
package lab
