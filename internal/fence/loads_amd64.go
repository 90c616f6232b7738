package fence

// Loads orders earlier loads before later ones. amd64 does so by itself.
func Loads() {}
