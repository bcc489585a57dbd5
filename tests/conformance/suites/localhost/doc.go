// Package localhost serves the loopback addresses of a program by slices of software ConnectX on a
// switch in memory, for tests of other projects that connect to themselves: what a socket sends to
// 127.0.0.1 or ::1 crosses two NICs and the wire between them.
//
//	                 127.0.0.1:443            127.0.0.1:50000
//	program            socket                    socket
//	                      │                         │        Host: who has which port
//	slices           192.0.2.1:443            192.0.2.2:50000
//	                      └──────── switch ─────────┘
//
// Each socket has a slice of its own while there are enough, and is told addresses of loopback in
// the place of those of slices: LocalAddr, RemoteAddr, senders of datagrams, IP_PKTINFO. A port
// belongs to one slice, so that a second socket on it is refused as on one host.
package localhost
