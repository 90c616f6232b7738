//go:build !amd64

package kernel

type form struct {
	t Type
	f Func
}

func vectorForms() map[string]form { return nil }
