"""`make soak`: kills, full disks, untrusted files, memory and load, again and again, bounded, with one table at the end."""
