// Package hostmode tests stacks on the host's own addresses (stack.Config.Host) as their users see
// them: a server is a process in a network namespace with one address and services of the kernel's,
// and has clients beyond the cable, in the namespace itself and in a container behind a bridge.
package hostmode
