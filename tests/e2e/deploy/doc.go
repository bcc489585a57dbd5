// Package deploy runs the program as deploy/ has it run: built without cgo, confined, in an image,
// and checks what the manifests there say.
package deploy
